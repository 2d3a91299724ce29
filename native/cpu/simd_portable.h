// Sixteen lanes as plain arrays: what every function of the three simd_*.h headers means, and the bits they must give.
//
// Lane i is element i of memory. Each function rounds once per lane (fma once for both steps). `sum` adds lanes i and
// i + 8, then i and i + 4, then i and i + 2, then the last two. Nothing here may come from a standard template: the
// headers are compiled for different instruction sets and the linker keeps one copy of a template.
#ifndef SM70_CPU_SIMD_PORTABLE_H_
#define SM70_CPU_SIMD_PORTABLE_H_

#include <cstdint>

#include "cpu/half.h"

namespace sm70 {
namespace {

constexpr int kTileRows = 4;  // rows of activations worked on beside one tile of weights

struct F {
  float v[16];
};
struct I {
  int32_t v[16];
};

#define SM70_EACH_LANE for (int i = 0; i < 16; ++i)

inline F load(const float* from) {
  F r;
  SM70_EACH_LANE r.v[i] = from[i];
  return r;
}
inline void store(float* to, F x) { SM70_EACH_LANE to[i] = x.v[i]; }
inline F set(float x) {
  F r;
  SM70_EACH_LANE r.v[i] = x;
  return r;
}
inline F zero() { return set(0.0f); }
inline F fma(F x, F y, F z) {
  F r;
  SM70_EACH_LANE r.v[i] = __builtin_fmaf(x.v[i], y.v[i], z.v[i]);
  return r;
}
inline F add(F x, F y) {
  SM70_EACH_LANE x.v[i] += y.v[i];
  return x;
}
inline F sub(F x, F y) {
  SM70_EACH_LANE x.v[i] -= y.v[i];
  return x;
}
inline F mul(F x, F y) {
  SM70_EACH_LANE x.v[i] *= y.v[i];
  return x;
}
inline F div(F x, F y) {
  SM70_EACH_LANE x.v[i] /= y.v[i];
  return x;
}
// The second operand where either is NaN or both are equal.
inline F max(F x, F y) {
  SM70_EACH_LANE x.v[i] = x.v[i] > y.v[i] ? x.v[i] : y.v[i];
  return x;
}
inline F min(F x, F y) {
  SM70_EACH_LANE x.v[i] = x.v[i] < y.v[i] ? x.v[i] : y.v[i];
  return x;
}

inline F load_halves(const uint16_t* from) {
  F r;
  SM70_EACH_LANE r.v[i] = half_to_float(from[i]);
  return r;
}
// Rounds to nearest even.
inline void store_halves(uint16_t* to, F x) { SM70_EACH_LANE to[i] = float_to_half(x.v[i]); }

inline I load_words(const void* from) {
  I r;
  __builtin_memcpy(r.v, from, 64);
  return r;
}
inline void store_words(void* to, I x) { __builtin_memcpy(to, x.v, 64); }
inline I set_word(uint32_t x) {
  I r;
  SM70_EACH_LANE r.v[i] = static_cast<int32_t>(x);
  return r;
}
inline I no_words() { return set_word(0); }
inline I add(I x, I y) {
  SM70_EACH_LANE x.v[i] += y.v[i];
  return x;
}
inline I sub(I x, I y) {
  SM70_EACH_LANE x.v[i] -= y.v[i];
  return x;
}
inline I bit_and(I x, I y) {
  SM70_EACH_LANE x.v[i] &= y.v[i];
  return x;
}
inline I max_int(I x, I y) {
  SM70_EACH_LANE x.v[i] = x.v[i] > y.v[i] ? x.v[i] : y.v[i];
  return x;
}
// Each word as two signed 16-bit integers: total += low * low + high * high.
inline void add_dot_pairs(I* total, I x, I y) {
  SM70_EACH_LANE total->v[i] += static_cast<int16_t>(x.v[i]) * static_cast<int16_t>(y.v[i]) +
                                static_cast<int16_t>(x.v[i] >> 16) * static_cast<int16_t>(y.v[i] >> 16);
}
// words[w] holds word w of each of sixteen lanes of four words.
inline void load_lane_words(const uint8_t* lanes, I (&words)[4]) {
  for (int word = 0; word < 4; ++word) SM70_EACH_LANE __builtin_memcpy(&words[word].v[i], lanes + 16 * i + 4 * word, 4);
}
// The table's entry for both 16-bit halves of each word, 0 to 15, as signed 16-bit integers.
inline I look_up(const int8_t (&table)[16], I x) {
  SM70_EACH_LANE x.v[i] =
      (table[x.v[i] & 15] & 0xFFFF) | static_cast<int32_t>(static_cast<uint32_t>(table[x.v[i] >> 16 & 15]) << 16);
  return x;
}
// Both 16-bit halves of each word moved right, zeros coming in.
template <int kBits>
inline I right16(I x) {
  constexpr uint32_t kKept = (0xFFFFu >> kBits) * 0x10001u;
  SM70_EACH_LANE x.v[i] = static_cast<int32_t>((static_cast<uint32_t>(x.v[i]) >> kBits) & kKept);
  return x;
}
template <int kBits>
inline I left32(I x) {
  SM70_EACH_LANE x.v[i] = static_cast<int32_t>(static_cast<uint32_t>(x.v[i]) << kBits);
  return x;
}

inline F to_float(I x) {
  F r;
  SM70_EACH_LANE r.v[i] = static_cast<float>(x.v[i]);
  return r;
}
// To the nearest integer, ties to even; |x| < 2^31. The value of other lanes is not defined.
inline I to_int(F x) {
  I r;
  SM70_EACH_LANE {
    const float magic = 8388608.0f;  // 2^23: adding it drops the fraction by the processor's own rounding
    const float size = __builtin_fabsf(x.v[i]);
    const float whole = size < magic ? (size + magic) - magic : size;
    r.v[i] = size < 2147483648.0f ? static_cast<int32_t>(x.v[i] < 0 ? -whole : whole) : INT32_MIN;
  }
  return r;
}
inline I bits(F x) {
  I r;
  __builtin_memcpy(r.v, x.v, 64);
  return r;
}
inline F from_bits(I x) {
  F r;
  __builtin_memcpy(r.v, x.v, 64);
  return r;
}
// Each lane lies in the range of int16.
inline void store_int16(int16_t* to, I x) { SM70_EACH_LANE to[i] = static_cast<int16_t>(x.v[i]); }

// Lanes below `count` from `x`, the others from `rest`.
inline F keep_first(F x, int count, F rest) {
  SM70_EACH_LANE x.v[i] = i < count ? x.v[i] : rest.v[i];
  return x;
}
// Reads `count` floats, no more; the other lanes are zero.
inline F load_first(const float* from, int count) {
  F r;
  SM70_EACH_LANE r.v[i] = i < count ? from[i] : 0.0f;
  return r;
}
inline void store_first(float* to, F x, int count) {
  for (int i = 0; i < 16 && i < count; ++i) to[i] = x.v[i];
}

inline float sum(F x) {
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) x.v[i] += x.v[i + width];
  return x.v[0];
}
inline float largest(F x) {
  float r = x.v[0];
  SM70_EACH_LANE r = x.v[i] > r ? x.v[i] : r;
  return r;
}
inline int32_t sum(I x) {
  int32_t r = 0;
  SM70_EACH_LANE r += x.v[i];
  return r;
}
inline int32_t largest(I x) {
  int32_t r = x.v[0];
  SM70_EACH_LANE r = x.v[i] > r ? x.v[i] : r;
  return r;
}

// to[c * 16 + r] = rows[r][c] for r in 0..15, c in 0..columns-1; columns is a multiple of 8.
inline void transpose_rows(const float* const* rows, int64_t columns, float* to) {
  for (int64_t c = 0; c < columns; ++c) SM70_EACH_LANE to[c * 16 + i] = rows[i][c];
}

#undef SM70_EACH_LANE

}  // namespace
}  // namespace sm70

#endif  // SM70_CPU_SIMD_PORTABLE_H_
