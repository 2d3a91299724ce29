// Sixteen lanes as one 512-bit register. See simd_portable.h for what each function means.
#ifndef SM70_CPU_SIMD_AVX512_H_
#define SM70_CPU_SIMD_AVX512_H_

#include <immintrin.h>

#include <cstdint>

#include "cpu/transpose_avx2.h"

namespace sm70 {
namespace {

constexpr int kTileRows = 8;  // rows of activations whose sums fit the registers beside one tile of weights

struct F {
  __m512 a;
};
struct I {
  __m512i a;
};

inline F load(const float* from) { return {_mm512_loadu_ps(from)}; }
inline void store(float* to, F v) { _mm512_storeu_ps(to, v.a); }
inline F set(float v) { return {_mm512_set1_ps(v)}; }
inline F zero() { return {_mm512_setzero_ps()}; }
inline F fma(F x, F y, F z) { return {_mm512_fmadd_ps(x.a, y.a, z.a)}; }
inline F add(F x, F y) { return {_mm512_add_ps(x.a, y.a)}; }
inline F sub(F x, F y) { return {_mm512_sub_ps(x.a, y.a)}; }
inline F mul(F x, F y) { return {_mm512_mul_ps(x.a, y.a)}; }
inline F div(F x, F y) { return {_mm512_div_ps(x.a, y.a)}; }
inline F max(F x, F y) { return {_mm512_max_ps(x.a, y.a)}; }
inline F min(F x, F y) { return {_mm512_min_ps(x.a, y.a)}; }

inline F load_halves(const uint16_t* from) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
}
inline void store_halves(uint16_t* to, F v) {
  const __m256i halves = _mm512_cvtps_ph(v.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
}

inline I load_words(const void* from) { return {_mm512_loadu_si512(from)}; }
inline void store_words(void* to, I v) { _mm512_storeu_si512(to, v.a); }
inline I set_word(uint32_t v) { return {_mm512_set1_epi32(static_cast<int>(v))}; }
inline I no_words() { return {_mm512_setzero_si512()}; }
inline I add(I x, I y) { return {_mm512_add_epi32(x.a, y.a)}; }
inline I sub(I x, I y) { return {_mm512_sub_epi32(x.a, y.a)}; }
inline I bit_and(I x, I y) { return {_mm512_and_si512(x.a, y.a)}; }
inline I max_int(I x, I y) { return {_mm512_max_epi32(x.a, y.a)}; }
inline void add_dot_pairs(I* total, I x, I y) {
  total->a = _mm512_add_epi32(total->a, _mm512_madd_epi16(x.a, y.a));
  // Opaque to the compiler, which otherwise turns a chain of integer sums into a tree that spills every product.
  asm("" : "+v"(total->a));
}
inline void load_lane_words(const uint8_t* lanes, I (&words)[4]) {
  __m256i low[4], high[4];
  lane_words_8(lanes, &low[0], &low[1], &low[2], &low[3]);
  lane_words_8(lanes + 128, &high[0], &high[1], &high[2], &high[3]);
  for (int word = 0; word < 4; ++word)
    words[word].a = _mm512_inserti64x4(_mm512_castsi256_si512(low[word]), high[word], 1);
}
inline I look_up(const int8_t (&table)[16], I x) {
  const __m512i all = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  // Looked up in the upper bytes, then moved down with their sign.
  return {_mm512_srai_epi16(_mm512_shuffle_epi8(all, _mm512_slli_epi16(x.a, 8)), 8)};
}
template <int kBits>
inline I right16(I x) {
  return {_mm512_srli_epi16(x.a, kBits)};
}
template <int kBits>
inline I left32(I x) {
  return {_mm512_slli_epi32(x.a, kBits)};
}

inline F to_float(I x) { return {_mm512_cvtepi32_ps(x.a)}; }
inline I to_int(F x) { return {_mm512_cvtps_epi32(x.a)}; }
inline I bits(F x) { return {_mm512_castps_si512(x.a)}; }
inline F from_bits(I x) { return {_mm512_castsi512_ps(x.a)}; }
inline void store_int16(int16_t* to, I x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtsepi32_epi16(x.a));
}

inline __mmask16 first_lanes(int count) {
  return static_cast<__mmask16>(count >= 16 ? 0xFFFF : count <= 0 ? 0 : (1 << count) - 1);
}
inline F keep_first(F v, int count, F rest) { return {_mm512_mask_blend_ps(first_lanes(count), rest.a, v.a)}; }
inline F load_first(const float* from, int count) { return {_mm512_maskz_loadu_ps(first_lanes(count), from)}; }
inline void store_first(float* to, F v, int count) { _mm512_mask_storeu_ps(to, first_lanes(count), v.a); }

inline float sum(F v) {
  const __m256 low = _mm512_castps512_ps256(v.a);
  const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v.a), 1));
  const __m256 eight = _mm256_add_ps(low, high);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
inline float largest(F v) { return _mm512_reduce_max_ps(v.a); }
inline int32_t sum(I v) { return _mm512_reduce_add_epi32(v.a); }
inline int32_t largest(I v) { return _mm512_reduce_max_epi32(v.a); }

}  // namespace
}  // namespace sm70

#endif  // SM70_CPU_SIMD_AVX512_H_
