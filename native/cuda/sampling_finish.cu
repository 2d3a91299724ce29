// What the plan kernel left open, by task: the cut of the chunks that its plan reaches, an edge among the entries of a
// few bins, or a whole row by the digits of its keys. Blocks of rows that are done leave at once.
#include "sampling_bins.cuh"
#include "sampling_digits.cuh"

using namespace sm70;

namespace {

constexpr int kWarps = kFinishThreads / kWarp;
constexpr int kEach = kSortCapacity / kFinishThreads;

union Shared {
  WalkShared walk;
  uint64_t candidates[kSortCapacity];
};

// Collects the slice's entries whose bins are in the ranges and weighs those ahead of them. Where `target` has logits,
// masks what is behind the edge's bins; candidates keep their values till the edge is known.
__device__ void gather_ranges(const RowReader& row, const SamplingBatch& batch, const BinScale& scale,
                              const BinRanges& ranges, float top_p, const CutTarget& target, int row_index,
                              RowWorkspace& space, uint64_t (&list)[kSortCapacity], Finish::Scratch& scratch) {
  __shared__ uint32_t count;
  __shared__ uint32_t place;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  const Slice slice(batch, blockIdx.x, gridDim.x);
  const int lane = threadIdx.x % kWarp;
  const bool weighs = top_p != 1.0f;
  const bool divided = row.temperature != 1.0f;
  const double maximum = scale.top;
  // Behind the last bin nothing weighs anything.
  const float counted = min(ranges.kth_first, static_cast<float>(kMassBins));
  float* out = target.logits == nullptr ? nullptr : target.logits + row_index * batch.stride;
  uint64_t total = 0;
  uint64_t ahead = 0;
  const int end = min(static_cast<int64_t>(slice.end) * batch.chunk, static_cast<int64_t>(batch.width));
  const int base = slice.first * batch.chunk + threadIdx.x / kWarp * kWarpRead;
  each_read(row, base, end, kWarps * kWarpRead, lane, [&](Values values) {
    bool changed = divided;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float value = values.at[i];
      const float position = scale.position(value);
      if (weighs && position < counted) {
        const uint64_t mass = mass_within(value, maximum);
        total += mass;
        if (position < ranges.edge_first) ahead += mass;
      }
      const bool behind = !(position < ranges.edge_last);
      const bool candidate =
          (position >= ranges.edge_first && !behind) || (position >= ranges.kth_first && position < ranges.kth_last);
      if (candidate) {
        list[atomicAdd(&count, 1u)] = static_cast<uint64_t>(ordered_key(value)) << 32 | values.id(i);
      }
      if (behind) {
        values.at[i] = target.mask_value;
        changed = true;
      }
    }
    if (out != nullptr && changed) write_values(row, out, values);
  });
  total = Finish::sum(total, scratch);
  ahead = Finish::sum(ahead, scratch);
  if (threadIdx.x == 0) {
    if (total != 0) atomicAdd(&space.total, total);
    if (ahead != 0) atomicAdd(&space.ahead, ahead);
    if (count != 0) place = atomicAdd(&space.found, count);
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < count; i += kFinishThreads) space.candidates[place + i] = list[i];
}

// The plan from the collected candidates, to every thread; `kept` of the sorted ones stay.
__device__ RowPlan decide_in_range(const RowWorkspace& space, const BinScale& scale, const BinRanges& ranges,
                                   uint32_t top_k, float top_p, int found, uint64_t (&sorted)[kSortCapacity], int& kept,
                                   Finish::Scratch& scratch) {
  const int size = power_of_two_from(found);
  __syncthreads();
  for (int i = threadIdx.x; i < size; i += kFinishThreads) sorted[i] = i < found ? load_fresh(&space.candidates[i]) : 0;
  Finish::sort_descending(sorted, size);
  const double maximum = scale.top;
  const auto key_at = [&](int at) { return static_cast<uint32_t>(sorted[at] >> 32); };
  const int first = threadIdx.x * kEach;
  uint32_t threshold = 0;
  uint32_t ahead_of_kth = 0;
  uint32_t surviving = 0;
  if (top_k != 0) {
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      ahead_of_kth += first + i < found && scale.position(value_of(key_at(first + i))) < ranges.kth_first;
    ahead_of_kth = Finish::sum(ahead_of_kth, scratch);
    threshold = key_at(static_cast<int>(ahead_of_kth + top_k - space.ahead_of_kth) - 1);
  }
  uint64_t mass[kEach];
  uint64_t mine = 0;
  uint64_t of_kth_bin = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = first + i;
    const bool survives = at < found && key_at(at) >= threshold;
    surviving += survives;
    mass[i] = survives && top_p != 1.0f ? mass_of(value_of(key_at(at)), maximum) : 0;
    mine += mass[i];
    if (at >= static_cast<int>(ahead_of_kth) && top_k != 0) of_kth_bin += mass[i];
  }
  const int survivors = Finish::sum(surviving, scratch);
  if (top_p == 1.0f) {
    kept = survivors;
    return {threshold, threshold, 0, 0};
  }
  const uint64_t limit = nucleus_limit(top_p, load_fresh(&space.total) + Finish::sum(of_kth_bin, scratch));
  uint64_t ahead = load_fresh(&space.ahead) + Finish::sum_before(mine, scratch);
  uint32_t inside = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    inside += first + i < survivors && ahead < limit;
    ahead += mass[i];
  }
  kept = Finish::sum(inside, scratch);
  const uint32_t cut = key_at(kept - 1);
  const bool split = kept < survivors && key_at(kept) == cut;
  return {threshold, cut, split ? static_cast<uint32_t>(sorted[kept - 1]) : 0, 0};
}

}  // namespace

SM70_KERNEL((kFinishThreads, 2), sampling_finish, SamplingBatch batch, RowWorkspace* workspace, RowPlan* plans,
            CutTarget target) {
  __shared__ Shared shared;
  __shared__ WalkRow walk;
  __shared__ Finish::Scratch scratch;
  const int row_index = blockIdx.y;
  RowWorkspace& space = workspace[row_index];
  const uint32_t task = space.task;
  if (task == kDone) return;
  const RowReader row = reader_of(batch, row_index, true);
  if (task == kCut) {
    const Slice slice(batch, blockIdx.x, gridDim.x);
    const RowPlan plan = plans[row_index];
    cut_slice<kFinishThreads>(row, batch, slice, space.top, space.low, plan, target, row_index);
    return;
  }
  const int asked = batch.top_k == nullptr ? 0 : batch.top_k[row_index];
  const uint32_t top_k = asked > 0 && asked < batch.width ? asked : 0;
  const float top_p = batch.top_p == nullptr ? 1.0f : batch.top_p[row_index];
  if (task == kInRange) {
    const BinScale scale(space.top_key, space.bin_bits);
    // Copied, or every entry would read them again: the compiler cannot know what the kernel writes meanwhile.
    const BinRanges ranges = space.ranges;
    gather_ranges(row, batch, scale, ranges, top_p, target, row_index, space, shared.candidates, scratch);
    if (!Finish::is_last(&space.arrivals[1], gridDim.x, scratch)) return;
    const int found = load_fresh(&space.found);
    int kept = 0;
    const RowPlan plan = decide_in_range(space, scale, ranges, top_k, top_p, found, shared.candidates, kept, scratch);
    if (threadIdx.x == 0) plans[row_index] = plan;
    if (target.logits == nullptr) return;
    for (int i = kept + threadIdx.x; i < found; i += kFinishThreads)
      target.logits[row_index * batch.stride + static_cast<uint32_t>(shared.candidates[i])] = target.mask_value;
    return;
  }
  const int chunks = ceil_divide(batch.width, batch.chunk);
  uint32_t largest = 0;
  for (int chunk = threadIdx.x; chunk < chunks; chunk += kFinishThreads) largest = max(largest, space.top[chunk]);
  const uint32_t top = Finish::largest(largest, scratch);
  if (threadIdx.x == 0)
    walk = {batch, target, row, &space, &plans[row_index], row_index, top, top_k, top_p, static_cast<int>(gridDim.x)};
  __syncthreads();
  walk_row(walk, shared.walk, scratch);
}
