// out = factor * x @ W^T (+ residual) on tensor cores (mma.m8n8k4), FP32 accumulators, for few rows of x.
//
// A block owns 32 columns of out and 8 * kRowTiles rows. A warp instruction gives each of its four quad pairs the same
// eight rows of x and its own eight columns, so a weight is read once for all rows. The eight warps split k into chunks
// of 32, warp w taking chunks w, w + 8, ...; their sums meet in shared memory in the order of the warps. That order
// does not depend on kRowTiles, so neither do a row's bits.
#ifndef SM70_CUDA_LINEAR_CUH_
#define SM70_CUDA_LINEAR_CUH_

#include "device.cuh"
#include "linear.h"

namespace linear {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kColumns = 32;
constexpr int kChunk = 32;  // inputs of a chunk

// Where a lane stands in the fragments of a 32-column tile.
struct Lane {
  int pair;    // quad pair
  int r;       // its row of x and, within the quad pair's eight, its column of the weight
  int column;  // of the tile: 8 * pair + r
  int c0;      // first of its accumulator's columns: c0, c0 + 1, c0 + 4, c0 + 5
  int row0;    // first of its accumulator's rows: row0, row0 + 2
  __device__ explicit Lane(int lane)
      : pair((lane >> 2) & 3),
        r((lane & 3) + 4 * (lane >> 4)),
        column(8 * pair + r),
        c0(8 * pair + (lane & 2)),
        row0((lane & 1) + 4 * (lane >> 4)) {}
};

// Weights of one lane's column for one chunk, as the B operand: pairs[2 * j], pairs[2 * j + 1] hold k = 4 j .. 4 j + 3.
struct Operand {
  uint32_t pairs[kChunk / 2];
};

__device__ inline const unsigned char* bytes(const void* pointer) { return static_cast<const unsigned char*>(pointer); }

// Eight 4-bit codes whose nibbles i and i + 4 are neighbours, as exact halves less `zero`: 1024 + code has the code in
// its last bits.
__device__ inline void decode_nibbles(uint32_t word, __half2 zero, uint32_t* pairs) {
  const __half2 offset = __hadd2(zero, half2_from_bits(0x64006400u));  // 1024 + zero: exact
#pragma unroll
  for (int i = 0; i < 4; ++i)
    pairs[i] = half2_bits(__hsub2(half2_from_bits(((word >> (4 * i)) & 0x000f000fu) | 0x64006400u), offset));
}

// Each format: `Raw` is what a lane loads for a chunk, in one go and ahead of its use; `decode` makes the operand.
// kScaled: the product of the codes is multiplied by the columns' scales in FP32, chunk by chunk.
// kMinimum: besides, every input is multiplied by the column's minimum (Q4_1).

// FP16 [n, k], rows on 16 bytes.
struct Fp16 {
  static constexpr bool kScaled = false, kMinimum = false, kVector = true;
  struct Raw {
    uint4 vectors[4];
  };
  __device__ static void load(const LinearArgs& args, const Lane& lane, int tile, int chunk, Raw& raw) {
    const int64_t row = static_cast<int64_t>(tile) * kColumns + lane.column;
    const __half* weight = static_cast<const __half*>(args.weight) + row * args.weight_stride + chunk * kChunk;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      raw.vectors[i] = make_uint4(0, 0, 0, 0);
      if (row < args.n && chunk * kChunk + 8 * i < args.k)
        raw.vectors[i] = __ldg(reinterpret_cast<const uint4*>(weight) + i);
    }
  }
  __device__ static void decode(const Raw& raw, Operand& out) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out.pairs[4 * i] = raw.vectors[i].x;
      out.pairs[4 * i + 1] = raw.vectors[i].y;
      out.pairs[4 * i + 2] = raw.vectors[i].z;
      out.pairs[4 * i + 3] = raw.vectors[i].w;
    }
  }
};

__device__ inline uint32_t load_pair(const __half* from, int64_t k, int64_t end) {
  const uint32_t low = k < end ? __half_as_ushort(from[k]) : 0;
  const uint32_t high = k + 1 < end ? __half_as_ushort(from[k + 1]) : 0;
  return low | high << 16;
}

// FP16 of any width and alignment.
struct Fp16Any {
  static constexpr bool kScaled = false, kMinimum = false, kVector = false;
  using Raw = Operand;
  __device__ static void load(const LinearArgs& args, const Lane& lane, int tile, int chunk, Raw& raw) {
    const int64_t row = static_cast<int64_t>(tile) * kColumns + lane.column;
    const __half* weight = static_cast<const __half*>(args.weight) + row * args.weight_stride;
#pragma unroll
    for (int i = 0; i < kChunk / 2; ++i)
      raw.pairs[i] = row < args.n ? load_pair(weight, chunk * kChunk + 2 * i, args.k) : 0;
  }
  __device__ static void decode(const Raw& raw, Operand& out) { out = raw; }
};

// GGUF blocks in tiles of 16 columns x 32 inputs, the layout of engine.ops.packed: words of one column 64 bytes apart,
// then 16 scales, then (Q4_1) 16 minima.
template <int kWords, int kTileBytes>
struct GgufTile {
  // Tile of 16 columns that holds column `column` of a 32-column tile, or null past the last.
  __device__ static const unsigned char* find(const LinearArgs& args, int tile, int column, int chunk) {
    const int64_t panel = static_cast<int64_t>(tile) * 2 + column / 16;
    if (panel * 16 >= args.n) return nullptr;
    return bytes(args.weight) + (panel * (args.k / kChunk) + chunk) * kTileBytes;
  }
  struct Raw {
    uint32_t words[kWords];
    uint32_t scales[2];  // half pairs: columns c0, c0 + 1 and c0 + 4, c0 + 5
    uint32_t minimum;
  };
  __device__ static void load(const LinearArgs& args, const Lane& lane, int tile, int chunk, Raw& raw, bool minimum) {
    const unsigned char* at = find(args, tile, lane.column, chunk);
    const bool there = at != nullptr;
#pragma unroll
    for (int w = 0; w < kWords; ++w)
      raw.words[w] = there ? __ldg(reinterpret_cast<const uint32_t*>(at) + w * 16 + lane.column % 16) : 0;
    const uint32_t* scales = reinterpret_cast<const uint32_t*>(at + kWords * 64) + lane.c0 % 16 / 2;
    raw.scales[0] = there ? __ldg(scales) : 0;
    raw.scales[1] = there ? __ldg(scales + 2) : 0;
    raw.minimum = 0;
    if (minimum && there) {
      const unsigned short bits =
          __ldg(reinterpret_cast<const unsigned short*>(at + kWords * 64 + 32) + lane.column % 16);
      raw.minimum = bits | static_cast<uint32_t>(bits) << 16;
    }
  }
};

__device__ inline void scales_of(const uint32_t (&halves)[2], float (&scale)[4]) {
  const float2 low = __half22float2(half2_from_bits(halves[0]));
  const float2 high = __half22float2(half2_from_bits(halves[1]));
  scale[0] = low.x, scale[1] = low.y, scale[2] = high.x, scale[3] = high.y;
}

struct Q41 : GgufTile<4, 320> {
  static constexpr bool kScaled = true, kMinimum = true, kVector = true;
  __device__ static void load(const LinearArgs& args, const Lane& lane, int tile, int chunk, Raw& raw) {
    GgufTile::load(args, lane, tile, chunk, raw, true);
  }
  __device__ static void decode(const Raw& raw, Operand& out) {
#pragma unroll
    for (int w = 0; w < 4; ++w) decode_nibbles(raw.words[w], half2_from_bits(0), out.pairs + 4 * w);
  }
  __device__ static void scales(const Raw& raw, float (&scale)[4]) { scales_of(raw.scales, scale); }
};

struct Q80 : GgufTile<8, 544> {
  static constexpr bool kScaled = true, kMinimum = false, kVector = true;
  __device__ static void load(const LinearArgs& args, const Lane& lane, int tile, int chunk, Raw& raw) {
    GgufTile::load(args, lane, tile, chunk, raw, false);
  }
  __device__ static void decode(const Raw& raw, Operand& out) {
    const __half2 offset = half2_from_bits(0x64806480u);  // 1024 + 128
#pragma unroll
    for (int w = 0; w < 8; ++w) {
      const uint32_t low = (raw.words[w] & 0x00ff00ffu) | 0x64006400u;
      const uint32_t high = ((raw.words[w] >> 8) & 0x00ff00ffu) | 0x64006400u;
      out.pairs[2 * w] = half2_bits(__hsub2(half2_from_bits(low), offset));
      out.pairs[2 * w + 1] = half2_bits(__hsub2(half2_from_bits(high), offset));
    }
  }
  __device__ static void scales(const Raw& raw, float (&scale)[4]) { scales_of(raw.scales, scale); }
};

// Codes of the SM70 packing: [n / 32, k / 32, 32 lanes, 16 bytes]; word w of a lane holds k = 8 w .. 8 w + 7 of its
// column in the order decode_nibbles wants.
__device__ inline uint4 load_codes(const LinearArgs& args, int tile, int chunk) {
  const int64_t at = (static_cast<int64_t>(tile) * (args.k / kChunk) + chunk) * kWarp + threadIdx.x % kWarp;
  return __ldg(static_cast<const uint4*>(args.weight) + at);
}

// int4 with zero points: params half2 (scale, zero) [n / 32, k / group, 32 columns]; weight = (code - zero) * scale.
struct Int4 {
  static constexpr bool kScaled = true, kMinimum = false, kVector = true;
  struct Raw {
    uint4 codes;
    uint32_t own;      // scale and zero of the lane's column
    uint2 columns[2];  // of columns c0, c0 + 1 and c0 + 4, c0 + 5
  };
  __device__ static void load(const LinearArgs& args, const Lane& lane, int tile, int chunk, Raw& raw) {
    raw.codes = load_codes(args, tile, chunk);
    const int64_t groups = args.k / args.group;
    const int64_t group = chunk * kChunk / args.group;
    const uint32_t* params = static_cast<const uint32_t*>(args.params) + (tile * groups + group) * kColumns;
    raw.own = __ldg(params + lane.column);
    raw.columns[0] = __ldg(reinterpret_cast<const uint2*>(params + lane.c0));
    raw.columns[1] = __ldg(reinterpret_cast<const uint2*>(params + lane.c0 + 4));
  }
  __device__ static void decode(const Raw& raw, Operand& out) {
    const __half2 zero = half2_from_bits((raw.own >> 16) | (raw.own & 0xffff0000u));
    decode_nibbles(raw.codes.x, zero, out.pairs);
    decode_nibbles(raw.codes.y, zero, out.pairs + 4);
    decode_nibbles(raw.codes.z, zero, out.pairs + 8);
    decode_nibbles(raw.codes.w, zero, out.pairs + 12);
  }
  __device__ static void scales(const Raw& raw, float (&scale)[4]) {
    scale[0] = __low2float(half2_from_bits(raw.columns[0].x));
    scale[1] = __low2float(half2_from_bits(raw.columns[0].y));
    scale[2] = __low2float(half2_from_bits(raw.columns[1].x));
    scale[3] = __low2float(half2_from_bits(raw.columns[1].y));
  }
};

// NVFP4: params E4M3 [n / 32, k / 32, 32 columns, 2]; weight = E2M1(code) * E4M3(scale). That product has at most six
// significant bits and, times 2^-7, fits a half: decoding is exact, and the factor carries 2^7 and the global scale.
struct Nvfp4 {
  static constexpr bool kScaled = false, kMinimum = false, kVector = true;
  struct Raw {
    uint4 codes;
    uint32_t scales;
  };
  __device__ static void load(const LinearArgs& args, const Lane& lane, int tile, int chunk, Raw& raw) {
    raw.codes = load_codes(args, tile, chunk);
    const int64_t at = (static_cast<int64_t>(tile) * (args.k / kChunk) + chunk) * kColumns + lane.column;
    raw.scales = __ldg(static_cast<const unsigned short*>(args.params) + at);
  }
  __device__ static void decode(const Raw& raw, Operand& out) {
    // Exponent and mantissa in a half's place are 2^-8 of the scale: times 2^15 makes 2^7 of it. Scales are not
    // negative.
    const __half2 low = __hmul2(half2_from_bits((raw.scales & 0x7fu) * 0x00800080u), half2_from_bits(0x78007800u));
    const __half2 high =
        __hmul2(half2_from_bits((raw.scales >> 8 & 0x7fu) * 0x00800080u), half2_from_bits(0x78007800u));
    const uint32_t words[4] = {raw.codes.x, raw.codes.y, raw.codes.z, raw.codes.w};
#pragma unroll
    for (int w = 0; w < 4; ++w)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // s|ee|m in a half's place is 2^-14 of the value.
        const uint32_t codes = words[w] >> (4 * i);
        const uint32_t value = (codes & 0x00080008u) << 12 | (codes & 0x00070007u) << 9;
        out.pairs[4 * w + i] = half2_bits(__hmul2(half2_from_bits(value), w < 2 ? low : high));
      }
  }
};

// Row `row` of x, 32 inputs from `chunk` on, as the A operand; zero beyond the last row or input.
template <bool kVector>
__device__ void load_inputs(const LinearArgs& args, int64_t row, int chunk, Operand& out) {
  const __half* x = static_cast<const __half*>(args.x) + row * args.x_stride;
  if constexpr (kVector) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint4 vector = make_uint4(0, 0, 0, 0);
      if (row < args.m && chunk * kChunk + 8 * i < args.k)
        vector = *(reinterpret_cast<const uint4*>(x + chunk * kChunk) + i);
      out.pairs[4 * i] = vector.x;
      out.pairs[4 * i + 1] = vector.y;
      out.pairs[4 * i + 2] = vector.z;
      out.pairs[4 * i + 3] = vector.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kChunk / 2; ++i) out.pairs[i] = row < args.m ? load_pair(x, chunk * kChunk + 2 * i, args.k) : 0;
  }
}

template <class Format>
__device__ void multiply(const Operand& x, const Operand& weight, const typename Format::Raw& raw, float (&sum)[8]) {
  if constexpr (Format::kScaled) {
    float product[8] = {};
#pragma unroll
    for (int j = 0; j < kChunk / 4; ++j)
      mma_m8n8k4(product, x.pairs[2 * j], x.pairs[2 * j + 1], weight.pairs[2 * j], weight.pairs[2 * j + 1]);
    if constexpr (Format::kMinimum) {
#pragma unroll
      for (int j = 0; j < kChunk / 4; ++j)
        mma_m8n8k4(sum, x.pairs[2 * j], x.pairs[2 * j + 1], raw.minimum, raw.minimum);
    }
    float scale[4];
    Format::scales(raw, scale);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] += scale[(i & 1) + (i >> 2) * 2] * product[i];
  } else {
#pragma unroll
    for (int j = 0; j < kChunk / 4; ++j)
      mma_m8n8k4(sum, x.pairs[2 * j], x.pairs[2 * j + 1], weight.pairs[2 * j], weight.pairs[2 * j + 1]);
  }
}

constexpr int kMeetRows = 16;  // rows whose sums meet in shared memory at a time

__device__ inline void write(const LinearArgs& args, int64_t row, int64_t column, float value) {
  if (row >= args.m || column >= args.n) return;
  value *= static_cast<float>(args.factor);
  if (args.out_fp32 != 0) {
    if (args.residual != nullptr)
      value += static_cast<const float*>(args.residual)[row * args.residual_stride + column];
    static_cast<float*>(args.out)[row * args.out_stride + column] = value;
  } else {
    if (args.residual != nullptr)
      value += __half2float(static_cast<const __half*>(args.residual)[row * args.residual_stride + column]);
    static_cast<__half*>(args.out)[row * args.out_stride + column] = __float2half_rn(value);
  }
}

// Grid: tiles of 32 columns, blocks of 8 * kRowTiles rows. kAhead: chunks whose weights a warp has asked for ahead of
// the one it multiplies. The order of adding is the same for every kAhead, so the bits are too.
template <class Format, int kRowTiles, int kAhead = 1>
__device__ void run(const LinearArgs& args) {
  __shared__ float meeting[kWarps][kMeetRows * kColumns];
  const Lane lane(threadIdx.x % kWarp);
  const int warp = threadIdx.x / kWarp;
  const int tile = blockIdx.x;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * 8 * kRowTiles;
  const int chunks = static_cast<int>((args.k + kChunk - 1) / kChunk);

  float sum[kRowTiles][8] = {};
  if constexpr (kAhead == 1) {
    typename Format::Raw raw, next;
    if (warp < chunks) Format::load(args, lane, tile, warp, raw);
    for (int chunk = warp; chunk < chunks; chunk += kWarps) {
      if (chunk + kWarps < chunks) Format::load(args, lane, tile, chunk + kWarps, next);
      Operand weight;
      Format::decode(raw, weight);
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        Operand x;
        load_inputs<Format::kVector>(args, first_row + 8 * t + lane.r, chunk, x);
        multiply<Format>(x, weight, raw, sum[t]);
      }
      raw = next;
    }
  } else {
    constexpr int kStages = kAhead + 1;
    typename Format::Raw ring[kStages];
#pragma unroll
    for (int s = 0; s < kAhead; ++s)
      if (warp + s * kWarps < chunks) Format::load(args, lane, tile, warp + s * kWarps, ring[s]);
    for (int first = warp; first < chunks; first += kStages * kWarps) {
#pragma unroll
      for (int s = 0; s < kStages; ++s) {
        const int chunk = first + s * kWarps, ahead = chunk + kAhead * kWarps;
        if (ahead < chunks) Format::load(args, lane, tile, ahead, ring[(s + kAhead) % kStages]);
        if (chunk >= chunks) continue;
        Operand weight;
        Format::decode(ring[s], weight);
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
          Operand x;
          load_inputs<Format::kVector>(args, first_row + 8 * t + lane.r, chunk, x);
          multiply<Format>(x, weight, ring[s], sum[t]);
        }
      }
    }
  }

  constexpr int kTilesAtATime = kMeetRows / 8;
#pragma unroll
  for (int t0 = 0; t0 < kRowTiles; t0 += kTilesAtATime) {
#pragma unroll
    for (int t = t0; t < t0 + kTilesAtATime && t < kRowTiles; ++t)
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int row = (t - t0) * 8 + lane.row0 + (i & 2);
        const int column = lane.c0 + (i & 4) + (i & 1);
        meeting[warp][row * kColumns + column] = sum[t][i];
      }
    __syncthreads();
    constexpr int kRowsHere = kRowTiles == 1 ? 8 : kMeetRows;
    for (int at = threadIdx.x; at < kRowsHere * kColumns; at += kThreads) {
      float total = meeting[0][at];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) total += meeting[w][at];
      write(args, first_row + t0 * 8 + at / kColumns, static_cast<int64_t>(tile) * kColumns + at % kColumns, total);
    }
    __syncthreads();
  }
}

}  // namespace linear

#define LINEAR_KERNEL(name, Format, tiles, ...)                                \
  SM70_KERNEL((linear::kThreads), linear_##name##_m##tiles, LinearArgs args) { \
    linear::run<linear::Format, tiles, ##__VA_ARGS__>(args);                   \
  }

#define LINEAR_KERNELS(name, Format) \
  LINEAR_KERNEL(name, Format, 1)     \
  LINEAR_KERNEL(name, Format, 2)     \
  LINEAR_KERNEL(name, Format, 4)     \
  LINEAR_KERNEL(name, Format, 8)

#endif  // SM70_CUDA_LINEAR_CUH_
