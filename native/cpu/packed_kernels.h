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
using TilePairs = I[16];

// Nibbles i and i + 4 of a word are a pair already, once they stand alone in their halves.
template <class Format>
inline void unpack_lanes(const uint8_t* lanes, TilePairs& pairs) {
  const I nibble = set_word(0x000F000Fu);
  I words[4];
  load_lane_words(lanes, words);
  for (int word = 0; word < 4; ++word) {
    pairs[4 * word] = Format::integers(bit_and(words[word], nibble));
    pairs[4 * word + 1] = Format::integers(bit_and(right16<4>(words[word]), nibble));
    pairs[4 * word + 2] = Format::integers(bit_and(right16<8>(words[word]), nibble));
    pairs[4 * word + 3] = Format::integers(right16<12>(words[word]));
  }
}

template <int kPairs>
inline I dot_codes(const I* pairs, const int16_t* x) {
  I total = no_words();
#pragma GCC unroll 16
  for (int pair = 0; pair < kPairs; ++pair) add_dot_pairs(&total, pairs[pair], set_word(pair_at(x + 2 * pair)));
  return total;
}

// The column of a tile that a lane of its first or second half owns. Params lie by column, codes by lane.
inline int64_t column_of(int lane, int64_t half) { return 8 * (lane >> 2) + (lane & 3) + 4 * half; }

// Code minus zero times scale, a (scale, zero) pair of halves for each column and group of `group` inputs.
struct Int4 {
  struct Steps {
    F scale, zero;
  };

  static inline I integers(I nibbles) { return nibbles; }

  static inline Steps steps(const PackedWeight& w, int64_t tile, int64_t chunk, int64_t half) {
    const uint16_t* params =
        static_cast<const uint16_t*>(w.params) + (tile * (w.k / w.group) + chunk * kGroup / w.group) * kPackedLanes * 2;
    uint16_t scales[16], zeros[16];
    for (int lane = 0; lane < 16; ++lane) {
      scales[lane] = params[2 * column_of(lane, half)];
      zeros[lane] = params[2 * column_of(lane, half) + 1];
    }
    return {load_halves(scales), load_halves(zeros)};
  }

  static inline F add_chunk(const Steps& steps, const TilePairs& pairs, const FixedPoint& x, int64_t row, int64_t chunk,
                            F total) {
    const int64_t at = row * x.groups + chunk;
    const I codes = dot_codes<16>(pairs, x.codes + row * x.k + chunk * kGroup);
    // Both integers are below 2^24, so are their products with zeros up to 15 and the difference: all exact.
    const F zero_part = mul(steps.zero, set(static_cast<float>(x.code_sums[at])));
    return fma(steps.scale, mul(sub(to_float(codes), zero_part), set(x.scales[at])), total);
  }

  static inline F finish(const PackedWeight&, F total) { return total; }
};

// E2M1 times an E4M3 scale for each column and 16 inputs times one global scale. Codes are twice E2M1: integers.
struct Nvfp4 {
  struct Steps {
    F scale[2];
  };

  static inline I integers(I nibbles) {
    static constexpr int8_t kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    return look_up(kTwice, nibbles);
  }

  static inline Steps steps(const PackedWeight& w, int64_t tile, int64_t chunk, int64_t half) {
    const uint8_t* scales = static_cast<const uint8_t*>(w.params) + (tile * (w.k / kGroup) + chunk) * kPackedLanes * 2;
    uint8_t codes[2][16];
    for (int lane = 0; lane < 16; ++lane) {
      codes[0][lane] = scales[2 * column_of(lane, half)];
      codes[1][lane] = scales[2 * column_of(lane, half) + 1];
    }
    return {{load_fp8(kKvE4M3, codes[0]), load_fp8(kKvE4M3, codes[1])}};
  }

  static inline F add_chunk(const Steps& steps, const TilePairs& pairs, const FixedPoint& x, int64_t row, int64_t chunk,
                            F total) {
    const F step = set(x.scales[row * x.groups + chunk]);
    for (int block = 0; block < 2; ++block) {
      const I dot = dot_codes<8>(pairs + 8 * block, x.codes + row * x.k + chunk * kGroup + 16 * block);
      total = fma(steps.scale[block], mul(to_float(dot), step), total);
    }
    return total;
  }

  static inline F finish(const PackedWeight& w, F total) { return mul(total, set(0.5f * w.global_scale)); }
};

// One tile of 32 columns times `rows` rows of activations; only columns below output.columns are written. kAhead: tiles
// whose codes are asked for ahead of the one in hand; with few rows there is little else to do while they come.
template <class Format, int64_t kAhead = 0>
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
        TilePairs pairs;
        const uint8_t* codes = w.codes + (tile * chunks + chunk) * kPackedTileBytes + 256 * half;
        if constexpr (kAhead > 0) prefetch<256>(codes + kAhead * kPackedTileBytes);
        unpack_lanes<Format>(codes, pairs);
        const typename Format::Steps steps = Format::steps(w, tile, chunk, half);
        for (int64_t r = 0; r < here; ++r)
          totals[r] = Format::add_chunk(steps, pairs, x, first_row + m + r, chunk, totals[r]);
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
