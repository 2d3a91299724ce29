// An 8 x 8 transposition in registers; shared by the AVX2 and AVX-512 headers.
#ifndef SM70_CPU_TRANSPOSE_AVX2_H_
#define SM70_CPU_TRANSPOSE_AVX2_H_

#include <immintrin.h>

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

}  // namespace
}  // namespace sm70

#endif  // SM70_CPU_TRANSPOSE_AVX2_H_
