// Sixteen lanes as two 256-bit registers. See simd_portable.h for what each function means.
#ifndef SM70_CPU_SIMD_AVX2_H_
#define SM70_CPU_SIMD_AVX2_H_

#include <immintrin.h>

#include <cstdint>

#include "cpu/transpose_avx2.h"

namespace sm70 {
namespace {

constexpr int kTileRows = 4;  // rows of activations whose sums fit the registers beside one tile of weights

struct F {
  __m256 a, b;
};
struct I {
  __m256i a, b;
};

inline F load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
inline void store(float* to, F v) {
  _mm256_storeu_ps(to, v.a);
  _mm256_storeu_ps(to + 8, v.b);
}
inline F set(float v) { return {_mm256_set1_ps(v), _mm256_set1_ps(v)}; }
inline F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }

inline F load_halves(const uint16_t* from) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 8)))};
}
inline void store_halves(uint16_t* to, F v) {
  constexpr int kNearestEven = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(v.a, kNearestEven));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 8), _mm256_cvtps_ph(v.b, kNearestEven));
}

inline I load_words(const void* from) {
  const __m256i* at = static_cast<const __m256i*>(from);
  return {_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
}
inline void store_words(void* to, I v) {
  __m256i* at = static_cast<__m256i*>(to);
  _mm256_storeu_si256(at, v.a);
  _mm256_storeu_si256(at + 1, v.b);
}
inline I set_word(uint32_t v) {
  const __m256i all = _mm256_set1_epi32(static_cast<int>(v));
  return {all, all};
}
inline I no_words() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline I add(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline I sub(I x, I y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
inline I bit_and(I x, I y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
inline I max_int(I x, I y) { return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)}; }
inline void add_dot_pairs(I* total, I x, I y) {
  total->a = _mm256_add_epi32(total->a, _mm256_madd_epi16(x.a, y.a));
  total->b = _mm256_add_epi32(total->b, _mm256_madd_epi16(x.b, y.b));
  // Opaque to the compiler, which otherwise turns a chain of integer sums into a tree that spills every product.
  asm("" : "+x"(total->a), "+x"(total->b));
}
inline void load_lane_words(const uint8_t* lanes, I (&words)[4]) {
  lane_words_8(lanes, &words[0].a, &words[1].a, &words[2].a, &words[3].a);
  lane_words_8(lanes + 128, &words[0].b, &words[1].b, &words[2].b, &words[3].b);
}
inline I look_up(const int8_t (&table)[16], I x) {
  const __m256i all = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  // Looked up in the upper bytes, then moved down with their sign.
  return {_mm256_srai_epi16(_mm256_shuffle_epi8(all, _mm256_slli_epi16(x.a, 8)), 8),
          _mm256_srai_epi16(_mm256_shuffle_epi8(all, _mm256_slli_epi16(x.b, 8)), 8)};
}
template <int kBits>
inline I right16(I x) {
  return {_mm256_srli_epi16(x.a, kBits), _mm256_srli_epi16(x.b, kBits)};
}
template <int kBits>
inline I left32(I x) {
  return {_mm256_slli_epi32(x.a, kBits), _mm256_slli_epi32(x.b, kBits)};
}

inline F to_float(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline I to_int(F x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
inline I bits(F x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
inline F from_bits(I x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
inline void store_int16(int16_t* to, I x) {
  // Packing works on 128-bit halves; the permutation brings the lanes back in order.
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xD8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), packed);
}

inline __m256i first_lanes(int count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline F keep_first(F v, int count, F rest) {
  return {_mm256_blendv_ps(rest.a, v.a, _mm256_castsi256_ps(first_lanes(count))),
          _mm256_blendv_ps(rest.b, v.b, _mm256_castsi256_ps(first_lanes(count - 8)))};
}
inline F load_first(const float* from, int count) {
  return {_mm256_maskload_ps(from, first_lanes(count)), _mm256_maskload_ps(from + 8, first_lanes(count - 8))};
}
inline void store_first(float* to, F v, int count) {
  _mm256_maskstore_ps(to, first_lanes(count), v.a);
  _mm256_maskstore_ps(to + 8, first_lanes(count - 8), v.b);
}

inline float sum(F v) {
  const __m256 eight = _mm256_add_ps(v.a, v.b);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
inline float largest(F v) {
  const __m256 eight = _mm256_max_ps(v.a, v.b);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}
inline int32_t sum(I v) {
  const __m256i eight = _mm256_add_epi32(v.a, v.b);
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xB1)));
}
inline int32_t largest(I v) {
  const __m256i eight = _mm256_max_epi32(v.a, v.b);
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4E));
  return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xB1)));
}

}  // namespace
}  // namespace sm70

#endif  // SM70_CPU_SIMD_AVX2_H_
