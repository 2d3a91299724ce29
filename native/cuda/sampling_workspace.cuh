// How a batch is cut into work, and the workspace of one row: a fixed number of bytes, whatever the width of the row.
#ifndef SM70_CUDA_SAMPLING_WORKSPACE_CUH_
#define SM70_CUDA_SAMPLING_WORKSPACE_CUH_

#include "sampling_rule.cuh"

namespace sm70 {

constexpr int kWarpRead = 128;       // entries that a warp reads at once
constexpr int kMaxChunks = 2048;     // a chunk is a whole number of warp reads; its largest key is kept
constexpr int kMaxSlices = 256;      // a slice is what one block of a row walks
constexpr int kSortCapacity = 2048;  // entries that one block sorts
constexpr int kBinsPerOctave = 32;   // bins of mass by distance from the row's largest value
constexpr int kMassBins = kMassOctaves * kBinsPerOctave;
constexpr int kScanThreads = 256;
constexpr int kPlanThreads = 256;
constexpr int kFinishThreads = 1024;

// What the finish kernel still has to do for a row.
enum RowTask : uint32_t {
  kDone = 0,
  kEdgeInRange = 1,  // the edge of the nucleus is among the entries with keys low..high
  kLocateTie = 2,    // the plan is known but for the id of the rank-th highest tie of slice `slice`
  kByDigits = 3,     // anything else: one block walks the row's keys
};

struct alignas(16) RowWorkspace {
  uint64_t total;        // mass of the row
  uint64_t ahead;        // mass of the entries above the range
  uint64_t limit;        // mass that the nucleus needs
  uint32_t arrivals[3];  // blocks that are done with the plan, finish and draw kernels
  uint32_t found;        // candidates; may exceed kSortCapacity, then the list is not complete
  uint32_t task;         // RowTask
  uint32_t low, high;    // kEdgeInRange: keys; kLocateTie: low is the tie
  uint32_t slice, rank;  // kLocateTie
  uint32_t top[kMaxChunks];
  uint32_t ties[kMaxSlices];   // entries equal to the bound, by slice
  uint64_t coarse[kMassBins];  // coarse masses of the bins, see sampling_bins.cuh
  // Plan: key in the high half, id in the low. Draw: mass of each chunk.
  uint64_t candidates[kSortCapacity];
};
static_assert(kMaxChunks <= kSortCapacity, "the draw kernel keeps a mass a chunk");

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

SM70_BOTH int ceil_divide(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

}  // namespace sm70

#endif  // SM70_CUDA_SAMPLING_WORKSPACE_CUH_
