// Linear layers over 4-bit weights in the SM70 packing (native/cuda_bindings/packed.py), the same bytes that the CUDA
// kernels read; included by kernels_<isa>.cpp after linear_kernels.h.
//
// A tile is 32 lanes x 16 bytes: lane l owns one output column, its word w holds inputs 8w .. 8w + 7, nibbles i and i +
// 4 being inputs 8w + 2i and 8w + 2i + 1. Codes become 16-bit integers and meet fixed-point activations, as in
// linear_kernels.h: exact sums over a group, then one chain of fma per output in ascending k.
#ifndef SM70_CPU_PACKED_KERNELS_H_
#define SM70_CPU_PACKED_KERNELS_H_

#include <cstdint>

#include "cpu/kernels.h"
#include "cpu/kv_kernels.h"
#include "cpu/linear_kernels.h"

namespace sm70 {
namespace {

constexpr int64_t kPackedLanes = 32;
constexpr int64_t kPackedTileBytes = 512;

// Pairs of 16-bit codes of sixteen lanes of a tile: pair p of lane l holds inputs 2p and 2p + 1.
using TileWords = uint32_t[16][16];

// meaning[nibble] is the code's 16-bit integer.
inline void unpack_lanes(const uint8_t* lanes, const uint16_t* meaning, TileWords& words) {
  for (int lane = 0; lane < 16; ++lane)
    for (int word = 0; word < 4; ++word) {
      uint32_t codes;
      __builtin_memcpy(&codes, lanes + 16 * lane + 4 * word, 4);
      for (int i = 0; i < 4; ++i) {
        const uint32_t low = meaning[codes >> (4 * i) & 15], high = meaning[codes >> (4 * i + 16) & 15];
        words[4 * word + i][lane] = low | high << 16;
      }
    }
}

template <int kPairs>
inline I dot_codes(const uint32_t (*words)[16], const int16_t* x) {
  I total = no_words();
  for (int pair = 0; pair < kPairs; ++pair)
    add_dot_pairs(&total, load_words(words[pair]), set_word(pair_at(x + 2 * pair)));
  return total;
}

// The column of a tile that a lane of its first or second half owns. Params lie by column, codes by lane.
inline int64_t column_of(int lane, int64_t half) { return 8 * (lane >> 2) + (lane & 3) + 4 * half; }

// Code minus zero times scale, a (scale, zero) pair of halves for each column and group of `group` inputs.
struct Int4 {
  static inline const uint16_t* meaning() {
    static const uint16_t kCodes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return kCodes;
  }

  static inline F add_chunk(const PackedWeight& w, int64_t tile, int64_t chunk, int64_t half, const TileWords& words,
                            const FixedPoint& x, int64_t row, F total) {
    const uint16_t* params =
        static_cast<const uint16_t*>(w.params) + (tile * (w.k / w.group) + chunk * kGroup / w.group) * kPackedLanes * 2;
    uint16_t scales[16];
    float zeros[16];
    for (int lane = 0; lane < 16; ++lane) {
      scales[lane] = params[2 * column_of(lane, half)];
      zeros[lane] = half_to_float(params[2 * column_of(lane, half) + 1]);
    }
    const int64_t at = row * x.groups + chunk;
    const I codes = dot_codes<16>(words, x.codes + row * x.k + chunk * kGroup);
    // Both integers are below 2^24, so are their products with zeros up to 15 and the difference: all exact.
    const F zero_part = mul(load(zeros), set(static_cast<float>(x.code_sums[at])));
    const F dot = sub(to_float(codes), zero_part);
    return fma(load_halves(scales), mul(dot, set(x.scales[at])), total);
  }

  static inline F finish(const PackedWeight&, F total) { return total; }
};

// E2M1 times an E4M3 scale for each column and 16 inputs times one global scale. Codes are twice E2M1: integers.
struct Nvfp4 {
  static inline const uint16_t* meaning() {
    static const uint16_t kTwice[16] = {0,      1,      2,      3,      4,      6,      8,      12,
                                        0x0000, 0xFFFF, 0xFFFE, 0xFFFD, 0xFFFC, 0xFFFA, 0xFFF8, 0xFFF4};
    return kTwice;
  }

  static inline F add_chunk(const PackedWeight& w, int64_t tile, int64_t chunk, int64_t half, const TileWords& words,
                            const FixedPoint& x, int64_t row, F total) {
    const uint8_t* scales = static_cast<const uint8_t*>(w.params) + (tile * (w.k / kGroup) + chunk) * kPackedLanes * 2;
    const F step = set(x.scales[row * x.groups + chunk]);
    for (int block = 0; block < 2; ++block) {
      uint8_t codes[16];
      for (int lane = 0; lane < 16; ++lane) codes[lane] = scales[2 * column_of(lane, half) + block];
      const I dot = dot_codes<8>(words + 8 * block, x.codes + row * x.k + chunk * kGroup + 16 * block);
      total = fma(load_fp8(kKvE4M3, codes), mul(to_float(dot), step), total);
    }
    return total;
  }

  static inline F finish(const PackedWeight& w, F total) { return mul(total, set(0.5f * w.global_scale)); }
};

// One tile of 32 columns times `rows` rows of activations; only columns below output.columns are written.
template <class Format>
void packed_tile(const PackedWeight& w, int64_t tile, const FixedPoint& x, int64_t first_row, int64_t rows,
                 PanelOutput output) {
  constexpr int64_t kRows = 8;  // share an unpacked tile
  const int64_t chunks = w.k / kGroup;
  for (int64_t half = 0; half < 2; ++half)
    for (int64_t m = 0; m < rows; m += kRows) {
      const int64_t here = rows - m < kRows ? rows - m : kRows;
      F totals[kRows];
      for (int64_t r = 0; r < here; ++r) totals[r] = zero();
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        TileWords words;
        unpack_lanes(w.codes + (tile * chunks + chunk) * kPackedTileBytes + 256 * half, Format::meaning(), words);
        for (int64_t r = 0; r < here; ++r)
          totals[r] = Format::add_chunk(w, tile, chunk, half, words, x, first_row + m + r, totals[r]);
      }
      for (int64_t r = 0; r < here; ++r) {
        float lanes[16];
        store(lanes, Format::finish(w, totals[r]));
        for (int lane = 0; lane < 16; ++lane) {
          const int64_t column = column_of(lane, half);
          if (column >= output.columns) continue;
          float value = lanes[lane];
          if (output.residual != nullptr) value += output.residual[(m + r) * output.residual_stride + column];
          output.out[(m + r) * output.out_stride + column] = value;
        }
      }
    }
}

}  // namespace
}  // namespace sm70

#endif  // SM70_CPU_PACKED_KERNELS_H_
