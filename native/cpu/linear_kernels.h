// Linear layers over quantised weights, written for sixteen lanes; included by kernels_<isa>.cpp after a simd header.
//
// Activations become 16-bit fixed point with one power-of-two scale a group of 32, and the sum of a group is an exact
// integer: any order of adding gives the same bits, so rows may be blocked as suits the machine. Only the sums over
// groups are floating point, one chain in ascending k for each output: out = fma(minimum, sums, fma(scale, step *
// integer, out)).
//
// A panel is 16 output rows, one a lane. The layout of a tile is described in engine/ops/packed.py.
#ifndef SM70_CPU_LINEAR_KERNELS_H_
#define SM70_CPU_LINEAR_KERNELS_H_

#include <cstdint>

#include "cpu/kernels.h"

namespace sm70 {
namespace {

constexpr int64_t kGroup = 32;
constexpr int64_t kPanel = 16;

// A group whose largest magnitude is below 2^-112 becomes zero; one with a value that is not finite becomes NaN.
inline void group_to_fixed_point(const float* x, int16_t* codes, float* scale, float* scaled_sum, int32_t* code_sum) {
  const F low = load(x), high = load(x + 16);
  const I magnitude = set_word(0x7FFFFFFFu);
  const int32_t top = largest(max_int(bit_and(bits(low), magnitude), bit_and(bits(high), magnitude)));
  // Half a step is added before the exponent is taken: a value that would round to 2^15 gets the next scale.
  const int32_t exponent = (top + 0x100) >> 23;
  if (exponent < 15 || top >= 0x7F800000) {
    store_int16(codes, no_words());
    store_int16(codes + 16, no_words());
    *scale = *scaled_sum = top >= 0x7F800000 ? __builtin_nanf("") : 0.0f;
    *code_sum = 0;
    return;
  }
  const int32_t step_bits = (exponent - 14) << 23, inverse_bits = (268 - exponent) << 23;
  float step, inverse;
  __builtin_memcpy(&step, &step_bits, 4);
  __builtin_memcpy(&inverse, &inverse_bits, 4);
  const I a = to_int(mul(low, set(inverse))), b = to_int(mul(high, set(inverse)));
  store_int16(codes, a);
  store_int16(codes + 16, b);
  *scale = step;
  *code_sum = sum(add(a, b));
  *scaled_sum = step * static_cast<float>(*code_sum);
}

void to_fixed_point(const float* x, int64_t row, const FixedPoint& to) {
  for (int64_t g = 0; g < to.groups; ++g) {
    const int64_t at = row * to.groups + g;
    group_to_fixed_point(x + g * kGroup, to.codes + at * kGroup, to.scales + at, to.sums + at, to.code_sums + at);
  }
}

inline uint32_t pair_at(const int16_t* codes) {
  uint32_t pair;
  __builtin_memcpy(&pair, codes, 4);
  return pair;
}

// Fixed-point rows of one block of activations: where each starts.
template <int kRows>
struct Rows {
  const int16_t* codes[kRows];
  const float* scales[kRows];
  const float* sums[kRows];
  const int32_t* code_sums[kRows];
};

template <int kRows>
inline void multiply_pairs(I weights, const Rows<kRows>& x, int64_t at, I (&dots)[kRows]) {
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) add_dot_pairs(&dots[m], weights, set_word(pair_at(x.codes[m] + at)));
}

struct Q41 {
  static constexpr int64_t kTileBytes = 320;

  template <int kRows>
  static inline void group_dots(const uint8_t* tile, const Rows<kRows>& x, int64_t at, I (&dots)[kRows]) {
    const I nibble = set_word(0x000F000Fu);
#pragma GCC unroll 4
    for (int word = 0; word < 4; ++word) {
      const I codes = load_words(tile + 64 * word);
      multiply_pairs<kRows>(bit_and(codes, nibble), x, at + 8 * word, dots);
      multiply_pairs<kRows>(bit_and(right16<4>(codes), nibble), x, at + 8 * word + 2, dots);
      multiply_pairs<kRows>(bit_and(right16<8>(codes), nibble), x, at + 8 * word + 4, dots);
      multiply_pairs<kRows>(right16<12>(codes), x, at + 8 * word + 6, dots);
    }
  }

  template <int kRows>
  static inline void add_group(const uint8_t* tile, const Rows<kRows>& x, int64_t group, const I (&dots)[kRows],
                               F (&out)[kRows]) {
    const F scale = load_halves(reinterpret_cast<const uint16_t*>(tile + 256));
    const F minimum = load_halves(reinterpret_cast<const uint16_t*>(tile + 288));
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      // The integer is below 2^24, the step a power of two: the product is exact.
      const F product = mul(to_float(dots[m]), set(x.scales[m][group]));
      out[m] = fma(minimum, set(x.sums[m][group]), fma(scale, product, out[m]));
    }
  }
};

struct Q80 {
  static constexpr int64_t kTileBytes = 544;

  template <int kRows>
  static inline void group_dots(const uint8_t* tile, const Rows<kRows>& x, int64_t at, I (&dots)[kRows]) {
    const I low_byte = set_word(0x00FF00FFu);
#pragma GCC unroll 8
    for (int word = 0; word < 8; ++word) {
      const I codes = load_words(tile + 64 * word);
      multiply_pairs<kRows>(bit_and(codes, low_byte), x, at + 4 * word, dots);
      multiply_pairs<kRows>(right16<8>(codes), x, at + 4 * word + 2, dots);
    }
  }

  // Codes are stored with 128 added: sum(code * x) = sum((code + 128) * x) - 128 * sum(x).
  template <int kRows>
  static inline void add_group(const uint8_t* tile, const Rows<kRows>& x, int64_t group, const I (&dots)[kRows],
                               F (&out)[kRows]) {
    const F scale = load_halves(reinterpret_cast<const uint16_t*>(tile + 512));
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const I dot = sub(dots[m], set_word(static_cast<uint32_t>(x.code_sums[m][group]) << 7));
      out[m] = fma(scale, mul(to_float(dot), set(x.scales[m][group])), out[m]);
    }
  }
};

template <int kRows>
inline void write_panel(const F (&sums)[kRows], const PanelOutput& output, int64_t row, int64_t column) {
  const int64_t left = output.columns - column;
  const int count = left < kPanel ? static_cast<int>(left) : static_cast<int>(kPanel);
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    float* out = output.out + (row + m) * output.out_stride + column;
    F value = sums[m];
    if (output.residual != nullptr)
      value = add(value, load_first(output.residual + (row + m) * output.residual_stride + column, count));
    if (count == kPanel)
      store(out, value);
    else
      store_first(out, value, count);
  }
}

// How far ahead of the tile in hand memory is asked for. Without it the arithmetic and the wait for memory happen one
// after the other: hardware prefetching stops at panels and pages.
constexpr int64_t kPrefetchBytes = 2560;

template <int64_t kBytes>
inline void prefetch(const uint8_t* at) {
  for (int64_t line = 0; line < kBytes; line += 64) __builtin_prefetch(at + line);
}

// kRows rows of activations times one panel.
template <class Format, int kRows>
void multiply(const uint8_t* tiles, const FixedPoint& x, int64_t row, const PanelOutput& output, int64_t output_row,
              int64_t column) {
  Rows<kRows> rows;
  for (int m = 0; m < kRows; ++m) {
    rows.codes[m] = x.codes + (row + m) * x.k;
    rows.scales[m] = x.scales + (row + m) * x.groups;
    rows.sums[m] = x.sums + (row + m) * x.groups;
    rows.code_sums[m] = x.code_sums + (row + m) * x.groups;
  }
  F sums[kRows];
  for (int m = 0; m < kRows; ++m) sums[m] = zero();
  for (int64_t g = 0; g < x.groups; ++g, tiles += Format::kTileBytes) {
    prefetch<Format::kTileBytes>(tiles + kPrefetchBytes);
    I dots[kRows];
    for (int m = 0; m < kRows; ++m) dots[m] = no_words();
    Format::template group_dots<kRows>(tiles, rows, g * kGroup, dots);
    Format::template add_group<kRows>(tiles, rows, g, dots, sums);
  }
  write_panel<kRows>(sums, output, output_row, column);
}

template <class Format, int kRows>
void multiply_panels(const uint8_t* tiles, int64_t panels, const FixedPoint& x, int64_t row, const PanelOutput& output,
                     int64_t output_row) {
  prefetch<kPrefetchBytes>(tiles);  // where a run starts, nobody has asked for anything yet
  for (int64_t p = 0; p < panels; ++p)
    multiply<Format, kRows>(tiles + p * x.groups * Format::kTileBytes, x, row, output, output_row, p * kPanel);
}

// Blocks of kTileRows rows, then what is left in one or two passes: each pass reads the weights again.
template <class Format>
void panels(const uint8_t* tiles, int64_t panels, const FixedPoint& x, int64_t first_row, int64_t rows,
            PanelOutput output) {
  int64_t m = 0;
  for (; m + kTileRows <= rows; m += kTileRows)
    multiply_panels<Format, kTileRows>(tiles, panels, x, first_row + m, output, m);
  if (rows - m >= 4) multiply_panels<Format, 4>(tiles, panels, x, first_row + m, output, m), m += 4;
  if (rows - m == 3) return multiply_panels<Format, 3>(tiles, panels, x, first_row + m, output, m);
  if (rows - m == 2) return multiply_panels<Format, 2>(tiles, panels, x, first_row + m, output, m);
  if (rows - m == 1) multiply_panels<Format, 1>(tiles, panels, x, first_row + m, output, m);
}

void q4_1_panels(const uint8_t* tiles, int64_t count, const FixedPoint& x, int64_t first_row, int64_t rows,
                 PanelOutput output) {
  panels<Q41>(tiles, count, x, first_row, rows, output);
}

void q8_0_panels(const uint8_t* tiles, int64_t count, const FixedPoint& x, int64_t first_row, int64_t rows,
                 PanelOutput output) {
  panels<Q80>(tiles, count, x, first_row, rows, output);
}

inline F load_weights(const float* from) { return load(from); }
inline F load_weights(const uint16_t* from) { return load_halves(from); }

// Sixteen interleaved chains over k, then the tree of `sum`.
template <class Weight>
inline float dot(const Weight* weight, const float* x, int64_t k) {
  F total = zero();
  int64_t at = 0;
  for (; at + 16 <= k; at += 16) total = fma(load_weights(weight + at), load(x + at), total);
  if (at < k) {
    Weight rest[16] = {};
    for (int64_t i = at; i < k; ++i) rest[i - at] = weight[i];
    total = fma(load_weights(rest), load_first(x + at, static_cast<int>(k - at)), total);
  }
  return sum(total);
}

template <class Weight>
void dense_row(const void* weight, const float* x, int64_t x_stride, int64_t rows, int64_t k, const float* residual,
               int64_t residual_stride, float* out, int64_t out_stride) {
  for (int64_t m = 0; m < rows; ++m) {
    const float value = dot(static_cast<const Weight*>(weight), x + m * x_stride, k);
    out[m * out_stride] = residual == nullptr ? value : value + residual[m * residual_stride];
  }
}

void q8_0_row(const uint8_t* panel, int64_t lane, int64_t groups, float* out) {
  for (int64_t g = 0; g < groups; ++g) {
    const uint8_t* tile = panel + g * Q80::kTileBytes;
    float scales[16];
    store(scales, load_halves(reinterpret_cast<const uint16_t*>(tile + 512)));
    for (int word = 0; word < 8; ++word) {
      const uint8_t* bytes = tile + 64 * word + 4 * lane;
      const int order[4] = {0, 2, 1, 3};
      for (int i = 0; i < 4; ++i)
        out[g * kGroup + 4 * word + i] = scales[lane] * static_cast<float>(static_cast<int>(bytes[order[i]]) - 128);
    }
  }
}

}  // namespace
}  // namespace sm70

#endif  // SM70_CPU_LINEAR_KERNELS_H_
