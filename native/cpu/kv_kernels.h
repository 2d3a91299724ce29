// One head's row of a KV cache to floats and back, and the rotation of a head; included after a simd header.
#ifndef SM70_CPU_KV_KERNELS_H_
#define SM70_CPU_KV_KERNELS_H_

#include <cstdint>

#include "cpu/fp8.h"
#include "cpu/kernels.h"

namespace sm70 {
namespace {

// Sixteen FP8 codes. E5M2 is the upper byte of a half. An E4M3 code set into a half's exponent and mantissa is 2^-8 of
// its value, subnormals included; its two NaN codes would read as 480 and are made NaN.
inline F load_fp8(int64_t code, const uint8_t* from) {
  uint16_t halves[16];
  if (code == kKvE5M2) {
    for (int i = 0; i < 16; ++i) halves[i] = static_cast<uint16_t>(from[i] << 8);
    return load_halves(halves);
  }
  for (int i = 0; i < 16; ++i) {
    const unsigned magnitude = from[i] & 0x7Fu, sign = from[i] & 0x80u;
    halves[i] = static_cast<uint16_t>(sign << 8 | (magnitude == 0x7Fu ? 0x7E00u : magnitude << 7));
  }
  return mul(load_halves(halves), set(256.0f));
}

// `count` is a multiple of 16.
void kv_to_floats(int64_t code, const void* from, int64_t count, float* to) {
  if (code == kKvE4M3 || code == kKvE5M2)
    for (int64_t at = 0; at < count; at += 16) store(to + at, load_fp8(code, static_cast<const uint8_t*>(from) + at));
  else if (code == kKvFloat16)
    for (int64_t at = 0; at < count; at += 16) store(to + at, load_halves(static_cast<const uint16_t*>(from) + at));
  else
    for (int64_t at = 0; at < count; at += 16) store(to + at, load(static_cast<const float*>(from) + at));
}

// Codes of from / scale for an FP8 cache; the other formats have no scale. `count` is a multiple of 16.
void floats_to_kv(int64_t code, const float* from, float scale, int64_t count, void* to) {
  uint8_t* const bytes = static_cast<uint8_t*>(to);
  if (code == kKvE4M3)
    for (int64_t at = 0; at < count; ++at) bytes[at] = to_e4m3(from[at] / scale);
  else if (code == kKvE5M2)
    for (int64_t at = 0; at < count; ++at) bytes[at] = to_e5m2(from[at] / scale);
  else if (code == kKvFloat16)
    for (int64_t at = 0; at < count; at += 16) store_halves(static_cast<uint16_t*>(to) + at, load(from + at));
  else
    for (int64_t at = 0; at < count; at += 16) store(static_cast<float*>(to) + at, load(from + at));
}

// Rotates 2 * half dimensions of a head by (cos, sin) pairs and copies the rest. Plain loops: each product and sum is
// rounded on its own, so every compilation gives the same bits.
void rotate_head(const float* from, const float* cos_sin, int64_t half, int64_t head_dim, bool interleaved, float* to) {
  const int64_t step = interleaved ? 2 : 1, apart = interleaved ? 1 : half;
  for (int64_t i = 0; i < half; ++i) {
    const float first = from[i * step], second = from[i * step + apart];
    const float cosine = cos_sin[2 * i], sine = cos_sin[2 * i + 1];
    to[i * step] = first * cosine - second * sine;
    to[i * step + apart] = second * cosine + first * sine;
  }
  for (int64_t i = 2 * half; i < head_dim; ++i) to[i] = from[i];
}

}  // namespace
}  // namespace sm70

#endif  // SM70_CPU_KV_KERNELS_H_
