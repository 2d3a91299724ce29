// Sizes of the paged attention kernels, and how each cache format gets from memory to halves in shared memory.
#ifndef SM70_CUDA_PAGED_ATTENTION_SHAPE_CUH_
#define SM70_CUDA_PAGED_ATTENTION_SHAPE_CUH_

#include "device.cuh"
#include "fp8.cuh"
#include "paged_attention_work.cuh"

namespace paged_attention {

constexpr int kPad = 8;  // halves between rows in shared memory: spreads a column over the banks

// Threads of a block. With one row tile a V100 holds two blocks at a time (their shared memory and registers fit), with
// more of them one, which brings many warps of its own.
constexpr int threads_for(int dim, int row_tiles) { return dim == 64 || row_tiles == 1 ? 256 : 512; }
constexpr int blocks_for(int row_tiles) { return row_tiles == 1 ? 2 : 1; }
// Tiles whose places are kept at a time: those of a tile are written two tiles before its keys are asked for and three
// before its values are.
constexpr int kKPlaces = 2;
constexpr int kVPlaces = 3;
constexpr uint32_t kNowhere = 0xffffffffu;
constexpr int kItemBytes = 64;
static_assert(sizeof(Item) <= kItemBytes, "an item has its place in shared memory");
constexpr float kLog2e = 1.4426950408889634f;

// How the cache stores a number. kPerVector: numbers in 16 bytes.
struct Half {
  static constexpr int kPerVector = 8;
  // The key, of those that a warp takes, and the vector of its row that a lane takes.
  __device__ static int key(int lane, int vectors) { return lane / vectors; }
  __device__ static int column(int lane, int vectors) { return lane % vectors; }
  __device__ static void store(__half* to, const uint4& vector, bool) { *reinterpret_cast<uint4*>(to) = vector; }
};

// E4M3 or E5M2: a uniform branch, which costs less than kernels of its own for each. E4M3 numbers are stored divided by
// 256, which needs no multiplication and loses nothing; the launcher puts the 256 into the scales.
struct Fp8 {
  static constexpr int kPerVector = 16;
  // Eight neighbouring lanes take four columns of two keys: decoded, those lie in different banks.
  __device__ static int key(int lane, int vectors) { return (lane >> 2) % 2 + 2 * ((lane >> 3) / (vectors / 4)); }
  __device__ static int column(int lane, int vectors) { return lane % 4 + 4 * ((lane >> 3) % (vectors / 4)); }
  __device__ static void store(__half* to, const uint4& vector, bool e4m3) {
    uint4 low, high;
    if (e4m3)
      E4M3::decode16_small(vector, low, high);
    else
      E5M2::decode16(vector, low, high);
    reinterpret_cast<uint4*>(to)[0] = low;
    reinterpret_cast<uint4*>(to)[1] = high;
  }
};

// Sizes of a kernel; kDim is the head dimension rounded up to 64, 128 or 256 (the rest is zero in shared memory).
template <int kDim, int kRowTiles, class Format>
struct Shape {
  static constexpr int kThreads = threads_for(kDim, kRowTiles);
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kRows = 16 * kRowTiles;
  static constexpr int kLanesPerRow = kDim == 64 ? 4 : 8;  // threads that share a row of scores, whatever kRowTiles
  static_assert(kRows * kLanesPerRow <= kThreads, "every row has its threads");
  static constexpr int kKeys = kDim == 256 ? 32 : 64;  // keys of a tile
  static constexpr int kKeyTiles = kKeys / 16;
  // The head dimension is cut into chains of products that do not wait for each other. Their sums are added in pairs,
  // in the registers of a warp or, where there are warps to spare, by whoever reads the scores: the same bits.
  static constexpr int kChains = kDim == 256 ? 4 : 2;
  static constexpr int kScoreParts = kDim == 256 || (kDim == 64 && kRowTiles == 1) ? 2 : 1;
  static constexpr int kOwnChains = kChains / kScoreParts;
  static constexpr int kRowStride = kDim + kPad;      // of Q, K and V, in halves
  static constexpr int kScoreStride = kKeys + 4;      // in floats
  static constexpr int kWeightStride = kKeys + kPad;  // in halves
  static constexpr int kStageStride = kDim + 4;       // of 16 output rows, in floats

  static constexpr int kQ = 0;  // offsets in bytes
  static constexpr int kK = kQ + kRows * kRowStride * 2;
  static constexpr int kV = kK + kKeys * kRowStride * 2;
  static constexpr int kScores = kV + kKeys * kRowStride * 2;
  static constexpr int kWeights = kScores + kScoreParts * kRows * kScoreStride * 4;
  static constexpr int kPlaces = kWeights + kRows * kWeightStride * 2;
  static constexpr int kRowState = kPlaces + (kKPlaces + kVPlaces) * kKeys * 4;
  static constexpr int kItem = kRowState + 3 * kRows * 4;
  static constexpr int kBytes = kItem + kItemBytes;
  static_assert(kK % 32 == 0 && kV % 32 == 0 && kScores % 32 == 0 && kWeights % 32 == 0, "wmma needs 32-byte tiles");
  static_assert(16 * kStageStride * 4 <= kKeys * kRowStride * 2, "the staging rows lie over V");
  static_assert(kBytes <= 96 * 1024, "SM70 has 96 KiB");

  static constexpr int kVectorsPerRow = kDim / Format::kPerVector;
  static constexpr int kVectors = kKeys * kVectorsPerRow / kThreads;  // a thread's share of a K or V tile
  static constexpr int kOwnKeys = kKeys / kWarp;                      // of a lane of the last warp
  static_assert(kVectors >= 1 && kKeys * kVectorsPerRow % kThreads == 0, "a tile divides among the threads");

  // Tiles of the output: the warps stand kColumnWarps wide over the head dimension and kRowWarps deep over the rows.
  static constexpr int kColumnTiles = kDim / 16;
  static constexpr int kColumnWarps = kColumnTiles < kWarps ? kColumnTiles : kWarps;
  static constexpr int kRowWarps = kWarps / kColumnWarps;
  static constexpr int kOwnColumns = kColumnTiles / kColumnWarps;
  static constexpr int kOwnRows = (kRowTiles + kRowWarps - 1) / kRowWarps;
};

}  // namespace paged_attention

#endif  // SM70_CUDA_PAGED_ATTENTION_SHAPE_CUH_
