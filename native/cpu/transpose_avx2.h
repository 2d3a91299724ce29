// Transpositions in registers; shared by the AVX2 and AVX-512 headers.
#ifndef SM70_CPU_TRANSPOSE_AVX2_H_
#define SM70_CPU_TRANSPOSE_AVX2_H_

#include <immintrin.h>

#include <cstdint>

namespace sm70 {
namespace {

// to[c * 16 + r] = rows[r][c] for r, c in 0..7.
inline void transpose_8x8(const float* const* rows, int64_t offset, float* to) {
  __m256 pair[8], quad[8];
  for (int i = 0; i < 4; ++i) {
    const __m256 even = _mm256_loadu_ps(rows[2 * i] + offset), odd = _mm256_loadu_ps(rows[2 * i + 1] + offset);
    pair[2 * i] = _mm256_unpacklo_ps(even, odd);
    pair[2 * i + 1] = _mm256_unpackhi_ps(even, odd);
  }
  for (int half = 0; half < 2; ++half)
    for (int i = 0; i < 2; ++i) {
      const __m256 first = pair[4 * half + i], second = pair[4 * half + 2 + i];
      quad[4 * half + 2 * i] = _mm256_shuffle_ps(first, second, 0x44);
      quad[4 * half + 2 * i + 1] = _mm256_shuffle_ps(first, second, 0xEE);
    }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(to + 16 * i, _mm256_permute2f128_ps(quad[i], quad[4 + i], 0x20));
    _mm256_storeu_ps(to + 16 * (i + 4), _mm256_permute2f128_ps(quad[i], quad[4 + i], 0x31));
  }
}

// to[c * 16 + r] = rows[r][c] for r in 0..15, c in 0..columns-1; columns is a multiple of 8.
inline void transpose_rows(const float* const* rows, int64_t columns, float* to) {
  for (int64_t c = 0; c < columns; c += 8) {
    transpose_8x8(rows, c, to + c * 16);
    transpose_8x8(rows + 8, c, to + c * 16 + 8);
  }
}

// Words 0 to 3 of eight lanes of four words, each in a register of its own.
inline void lane_words_8(const uint8_t* lanes, __m256i* first, __m256i* second, __m256i* third, __m256i* fourth) {
  __m256i rows[4];  // lane i and lane i + 4
  for (int i = 0; i < 4; ++i) {
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(lanes + 16 * i));
    const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(lanes + 16 * (i + 4)));
    rows[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
  }
  const __m256i a = _mm256_unpacklo_epi32(rows[0], rows[1]), b = _mm256_unpackhi_epi32(rows[0], rows[1]);
  const __m256i c = _mm256_unpacklo_epi32(rows[2], rows[3]), d = _mm256_unpackhi_epi32(rows[2], rows[3]);
  *first = _mm256_unpacklo_epi64(a, c);
  *second = _mm256_unpackhi_epi64(a, c);
  *third = _mm256_unpacklo_epi64(b, d);
  *fourth = _mm256_unpackhi_epi64(b, d);
}

}  // namespace
}  // namespace sm70

#endif  // SM70_CPU_TRANSPOSE_AVX2_H_
