// RMSNorm, SwiGLU and format changes of one row; included by kernels_<isa>.cpp after a simd header.
#ifndef SM70_CPU_NORM_KERNELS_H_
#define SM70_CPU_NORM_KERNELS_H_

#include <cstdint>

#include "cpu/math_kernels.h"

namespace sm70 {
namespace {

// Sixteen interleaved chains over the row, then the tree of `sum`.
inline float sum_of_squares(const float* x, int64_t count) {
  F total = zero();
  int64_t at = 0;
  for (; at + 16 <= count; at += 16) {
    const F v = load(x + at);
    total = fma(v, v, total);
  }
  if (at < count) {
    const F v = load_first(x + at, static_cast<int>(count - at));
    total = fma(v, v, total);
  }
  return sum(total);
}

void rms_norm_row(const float* x, const float* weight, int64_t h, float eps, float* out) {
  const F scale = set(1.0f / __builtin_sqrtf(sum_of_squares(x, h) / static_cast<float>(h) + eps));
  int64_t at = 0;
  for (; at + 16 <= h; at += 16) store(out + at, mul(mul(load(x + at), scale), load(weight + at)));
  if (at < h) {
    const int rest = static_cast<int>(h - at);
    store_first(out + at, mul(mul(load_first(x + at, rest), scale), load_first(weight + at, rest)), rest);
  }
}

void silu_mul_row(const float* gate, const float* up, int64_t count, float* out) {
  int64_t at = 0;
  for (; at + 16 <= count; at += 16) store(out + at, mul(silu(load(gate + at)), load(up + at)));
  if (at < count) {
    const int rest = static_cast<int>(count - at);
    store_first(out + at, mul(silu(load_first(gate + at, rest)), load_first(up + at, rest)), rest);
  }
}

void halves_to_floats(const uint16_t* from, int64_t count, float* to) {
  int64_t at = 0;
  for (; at + 16 <= count; at += 16) store(to + at, load_halves(from + at));
  for (; at < count; ++at) to[at] = half_to_float(from[at]);
}

void floats_to_halves(const float* from, int64_t count, uint16_t* to) {
  int64_t at = 0;
  for (; at + 16 <= count; at += 16) store_halves(to + at, load(from + at));
  for (; at < count; ++at) to[at] = float_to_half(from[at]);
}

}  // namespace
}  // namespace sm70

#endif  // SM70_CPU_NORM_KERNELS_H_
