// How a batch is cut into work, and the workspace of one row: a fixed number of bytes, whatever the width of the row.
#ifndef SM70_CUDA_SAMPLING_WORKSPACE_CUH_
#define SM70_CUDA_SAMPLING_WORKSPACE_CUH_

#include "sampling_rule.cuh"

namespace sm70 {

constexpr int kWarpRead = 128;       // entries that a warp reads at once
constexpr int kMaxChunks = 2048;     // a chunk is a whole number of warp reads; its largest key is kept
constexpr int kMaxSlices = 256;      // a slice is what one block of a row walks
constexpr int kSortCapacity = 2048;  // entries that one block sorts
constexpr int kMassBins = kMassOctaves * 32;
constexpr int kDigitBits = 11;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kScanThreads = 256;
constexpr int kPlanThreads = 256;
constexpr int kFinishThreads = 512;

// What the finish kernel still has to do for a row.
enum RowTask : uint32_t {
  kDone = 0,
  kCut = 1,       // the plan is known, and the chunks that reach `low` are to be cut by it
  kInRange = 2,   // the k-th entry and the edge of the nucleus are among the entries of a few bins
  kByDigits = 3,  // anything else: the row's blocks walk its keys digit by digit
};

// Bins that the edge can be in, and the bin of the k-th entry, as positions (see sampling_bins.cuh): [first, last)
// each.
struct BinRanges {
  float edge_first, edge_last;
  float kth_first, kth_last;  // infinite where top-k is off
};

// One step of the walk by digits. Written once, by the block that ends the step before it.
struct alignas(16) WalkStep {
  uint32_t kind;       // WalkKind, see sampling_digits.cuh
  uint32_t low, high;  // keys still in question
  uint32_t threshold;
  uint64_t above;  // entries, or mass, of larger keys
  uint64_t limit;  // entries, or mass, that the edge completes
  uint32_t rank;   // of the tie that is looked for, from the highest id
  uint32_t unused[3];
};
constexpr int kMaxWalkSteps = 10;  // three digits by count, three by mass, the tie, the cut

struct alignas(16) RowWorkspace {
  uint64_t total;         // mass of the entries ahead of the bin of the k-th, or of the row
  uint64_t ahead;         // mass of the entries ahead of the edge's bins
  uint32_t arrivals[3];   // blocks that are done with the plan, finish and draw kernels
  uint32_t found;         // candidates; may exceed kSortCapacity, then the list is not complete
  uint32_t task;          // RowTask
  uint32_t low;           // kCut, kByDigits: no chunk below matters
  uint32_t top_key;       // kInRange
  uint32_t bin_bits;      // kInRange: bins of an octave, as a power of two
  uint32_t ahead_of_kth;  // kInRange: entries of the bins ahead of the k-th
  BinRanges ranges;
  uint32_t walk_ready;  // steps of the walk that are written
  uint32_t claimed[kMaxWalkSteps];
  uint32_t finished[kMaxWalkSteps];
  WalkStep walk[kMaxWalkSteps];
  uint32_t bottom[kMaxSlices];  // smallest key that a block of the scan kernel met
  uint32_t ties[kMaxSlices];    // entries equal to the bound, by slice
  uint32_t top[kMaxChunks];
  uint32_t counts[kMassBins];  // entries of each bin, where the row has a top-k
  uint64_t coarse[kMassBins];  // coarse masses of the bins, see sampling_bins.cuh
  // Plan and finish: key in the high half, id in the low. Walk: amounts by digit. Draw: mass of each chunk.
  uint64_t candidates[kSortCapacity];
};
static_assert(kMaxChunks <= kSortCapacity, "the draw kernel keeps a mass a chunk");
static_assert(kDigits <= kSortCapacity, "the walk keeps an amount a digit");

// What the host passes; every field is eight bytes wide. An op reads the fields that its name calls for.
struct SamplingArgs {
  float* logits;
  const int32_t* top_k;
  const float* top_p;
  const float* temperature;
  RowPlan* plan;
  RowWorkspace* workspace;
  const uint64_t* bits;
  const int64_t* excluded;      // draw: may be null
  const int64_t* tokens;        // weigh
  int64_t* out;                 // draw: tokens; weigh: pairs; masses: [rows, width]
  int64_t workspace_row_bytes;  // what the caller takes sizeof(RowWorkspace) to be
  int64_t rows;
  int64_t width;
  int64_t stride;
  int64_t apply;  // plan: cut the logits too
  double mask_value;
};

// The logits and settings of a batch, as every kernel takes them.
struct SamplingBatch {
  const float* logits;
  int64_t stride;
  const int32_t* top_k;      // null: off for every row
  const float* top_p;        // null: off
  const float* temperature;  // null: 1
  int32_t width;
  int32_t chunk;    // entries
  int32_t vectors;  // every row starts on 16 bytes
};

// Where the plan and finish kernels cut; `logits` is null where only a plan is asked for.
struct CutTarget {
  float* logits;
  float mask_value;
};

SM70_BOTH int ceil_divide(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

}  // namespace sm70

#endif  // SM70_CUDA_SAMPLING_WORKSPACE_CUH_
