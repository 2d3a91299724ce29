// The first look at the logits: the largest key of every chunk and the smallest of the row. And the cut by a plan that
// was made earlier.
#include "sampling_cut.cuh"

using namespace sm70;

namespace {

constexpr int kWarps = kScanThreads / kWarp;
constexpr int kAhead = 4;  // chunks that a warp has in flight
constexpr int32_t kMaxInt = 0x7fffffff;
using Threads = Block<kScanThreads>;

// Prepares the row's workspace for the kernels behind: nothing is assumed about what the memory holds.
__device__ void clear_row(RowWorkspace& space) {
  const int at = blockIdx.x * kScanThreads + threadIdx.x;
  const int step = gridDim.x * kScanThreads;
  for (int bin = at; bin < kMassBins; bin += step) {
    space.coarse[bin] = 0;
    space.counts[bin] = 0;
  }
  if (at < kMaxWalkSteps) {
    space.claimed[at] = 0;
    space.finished[at] = 0;
  }
  if (at == 0) {
    space.arrivals[0] = 0;
    space.arrivals[1] = 0;
    space.arrivals[2] = 0;
    space.total = 0;
    space.ahead = 0;
    space.found = 0;
    space.walk_ready = 0;
    space.task = kDone;
  }
}

// Largest and smallest of some values as signed integers that order like them: the bits, with those of a negative
// value turned over. NaN lies beyond the infinities, -0 just below +0.
struct Span {
  int32_t largest = -kMaxInt - 1;
  int32_t smallest = kMaxInt;

  __device__ void meet(const Values& values) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int32_t bits = __float_as_int(values.at[i]);
      const int32_t ordered = bits ^ (bits >> 31 & kMaxInt);
      largest = max(largest, ordered);
      smallest = min(smallest, ordered);
    }
  }
};

__device__ uint32_t key_of_span(int32_t ordered) {
  const uint32_t key = static_cast<uint32_t>(ordered) ^ 0x80000000u;
  if (key > kKeyPositiveInfinity) return kKeyNan;
  return key == 0x7fffffffu ? 0x80000000u : key;
}

// Notes the largest key of a chunk; by one warp.
__device__ void note_chunk(RowWorkspace& space, int chunk, const Span& span, int lane) {
  const uint32_t top = warp_max(key_of_span(span.largest));
  if (lane == 0) space.top[chunk] = top;
}

// Looks at kCount chunks from `first` on that lie in the row whole, all of them under way at once.
template <int kCount>
__device__ int32_t scan_whole(const RowReader& row, RowWorkspace& space, int first, int chunk_size, int lane) {
  Span spans[kCount];
  for (int at = 0; at < chunk_size; at += kWarpRead) {
    float4 four[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) four[i] = load_four(row, (first + i) * chunk_size + at + 4 * lane);
#pragma unroll
    for (int i = 0; i < kCount; ++i) spans[i].meet(values_of(row, four[i], 0));
  }
  int32_t smallest = kMaxInt;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    note_chunk(space, first + i, spans[i], lane);
    smallest = min(smallest, spans[i].smallest);
  }
  return smallest;
}

// One chunk of any row; past its end the last value is met again.
__device__ int32_t scan_any(const RowReader& row, RowWorkspace& space, int chunk, int chunk_size, int lane) {
  Span span;
  for (int at = 0; at < chunk_size; at += kWarpRead)
    span.meet(read_values_again(
        row, min(static_cast<int64_t>(chunk) * chunk_size + at, static_cast<int64_t>(row.width)), lane));
  note_chunk(space, chunk, span, lane);
  return span.smallest;
}

}  // namespace

SM70_KERNEL((kScanThreads), sampling_scan, SamplingBatch batch, RowWorkspace* workspace) {
  __shared__ Threads::Scratch scratch;
  const int row_index = blockIdx.y;
  RowWorkspace& space = workspace[row_index];
  clear_row(space);
  const float temperature = batch.temperature == nullptr ? 1.0f : batch.temperature[row_index];
  const RowReader row = reader_of(batch, row_index, parameter_flags(1.0f, temperature) == 0);
  const int chunks = ceil_divide(batch.width, batch.chunk);
  const int lane = threadIdx.x % kWarp;
  // Neighbouring chunks for each warp, as evenly as they go: no warp walks a last round alone.
  const int each = ceil_divide(chunks, gridDim.x * kWarps);
  const int begin = (blockIdx.x * kWarps + threadIdx.x / kWarp) * each;
  const int end = min(begin + each, chunks);
  const int whole = row.vectors ? min(end, batch.width / batch.chunk) : 0;
  int32_t smallest = kMaxInt;
  int chunk = begin;
  for (; chunk + kAhead <= whole; chunk += kAhead)
    smallest = min(smallest, scan_whole<kAhead>(row, space, chunk, batch.chunk, lane));
  for (; chunk + 2 <= whole; chunk += 2) smallest = min(smallest, scan_whole<2>(row, space, chunk, batch.chunk, lane));
  for (; chunk < end; ++chunk) smallest = min(smallest, scan_any(row, space, chunk, batch.chunk, lane));
  const uint32_t bottom = ~Threads::largest(~(static_cast<uint32_t>(smallest) ^ 0x80000000u), scratch);
  if (threadIdx.x == 0) space.bottom[blockIdx.x] = bottom;
}

SM70_KERNEL((kScanThreads), sampling_apply, SamplingBatch batch, CutTarget target, const RowPlan* plans) {
  const int row_index = blockIdx.y;
  const RowPlan plan = plans[row_index];
  const RowReader row = reader_of(batch, row_index, true);
  if (plan.flags != 0 || (plan.cut == 0 && row.temperature == 1.0f)) return;
  float* out = target.logits + row_index * batch.stride;
  const int reads = ceil_divide(batch.width, kWarpRead);
  const int lane = threadIdx.x % kWarp;
  for (int read = blockIdx.x * kWarps + threadIdx.x / kWarp; read < reads; read += gridDim.x * kWarps)
    cut_read(row, out, read * kWarpRead, lane, plan, target.mask_value);
}
