// Draws, and weights of tokens, from what a plan keeps. The scan kernel has run on these logits: the workspace holds
// the largest key of every chunk, so a chunk below the cut is not read.
#include "sampling_device.cuh"

using namespace sm70;

namespace {

constexpr int kWarps = kPlanThreads / kWarp;
constexpr int kChunksPerThread = kMaxChunks / kPlanThreads;
using Threads = Block<kPlanThreads>;

__device__ uint64_t kept_mass(uint32_t key, int id, const RowPlan& plan, double maximum, int64_t excluded) {
  return key != 0 && id != excluded && stays(key, id, plan) ? mass_of(value_of(key), maximum) : 0;
}

// The lowest id with the largest key; by one warp.
__device__ int lowest_maximum(const RowReader& row, int chunk_size, int chunk, uint32_t top) {
  const int lane = threadIdx.x % kWarp;
  for (int at = chunk * chunk_size;; at += kWarp) {
    const uint32_t equal = __ballot_sync(kFullMask, row.key_at(at + lane) == top);
    if (equal != 0) return at + __ffs(static_cast<int>(equal)) - 1;
  }
}

// The first id of a chunk whose running mass exceeds `left`; by one warp.
__device__ int pick_in_chunk(const RowReader& row, int chunk_size, int chunk, uint64_t left, const RowPlan& plan,
                             double maximum, int64_t excluded) {
  const int lane = threadIdx.x % kWarp;
  for (int at = chunk * chunk_size;; at += kWarp) {
    const uint64_t mass = kept_mass(row.key_at(at + lane), at + lane, plan, maximum, excluded);
    uint64_t running = mass;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const uint64_t other = __shfl_up_sync(kFullMask, running, step);
      if (lane >= step) running += other;
    }
    const uint32_t past = __ballot_sync(kFullMask, running > left);
    if (past != 0) return at + __ffs(static_cast<int>(past)) - 1;
    left -= __shfl_sync(kFullMask, running, kWarp - 1);
  }
}

// The row's largest key, and the lowest chunk that has it.
__device__ uint32_t top_of_row(const RowWorkspace& space, int chunks, int& chunk, Threads::Scratch& scratch) {
  uint32_t largest = 0;
  for (int at = threadIdx.x; at < chunks; at += kPlanThreads) largest = max(largest, space.top[at]);
  const uint32_t top = Threads::largest(largest, scratch);
  uint32_t lowest = ~0u;
  for (int at = threadIdx.x; at < chunks; at += kPlanThreads)
    if (space.top[at] == top) lowest = min(lowest, static_cast<uint32_t>(at));
  chunk = static_cast<int>(~Threads::largest(~lowest, scratch));
  return top;
}

}  // namespace

// `tokens` null: draws into `drawn`. Otherwise weighs them into `weights`: pairs of the token's mass and the row's.
SM70_KERNEL((kPlanThreads), sampling_draw, SamplingBatch batch, RowWorkspace* workspace, const RowPlan* plans,
            const uint64_t* bits, const int64_t* excluded_ids, int64_t* drawn, const int64_t* tokens,
            uint64_t* weights) {
  __shared__ Threads::Scratch scratch;
  __shared__ int chosen;
  __shared__ uint64_t left;
  const int row_index = blockIdx.y;
  RowWorkspace& space = workspace[row_index];
  const RowPlan plan = plans[row_index];
  const int64_t excluded = excluded_ids == nullptr ? -1 : excluded_ids[row_index];
  const RowReader row = reader_of(batch, row_index, plan.flags == 0);
  const int chunks = ceil_divide(batch.width, batch.chunk);

  if (plan.flags != 0) {
    if (blockIdx.x != 0) return;
    int chunk = 0;
    const uint32_t top = top_of_row(space, chunks, chunk, scratch);
    if (threadIdx.x >= kWarp) return;
    const bool fault = (plan.flags & kFault) != 0;
    const int64_t token = fault ? -1 : lowest_maximum(row, batch.chunk, chunk, top);
    if (threadIdx.x != 0) return;
    if (tokens == nullptr) {
      drawn[row_index] = token == excluded ? -1 : token;
    } else {
      weights[2 * row_index] = !fault && token == tokens[row_index] ? kMassOne : 0;
      weights[2 * row_index + 1] = fault ? 0 : kMassOne;
    }
    return;
  }

  int chunk_of_top = 0;
  const double maximum = value_of(top_of_row(space, chunks, chunk_of_top, scratch));
  const int lane = threadIdx.x % kWarp;
  for (int chunk = blockIdx.x * kWarps + threadIdx.x / kWarp; chunk < chunks; chunk += gridDim.x * kWarps) {
    uint64_t mass = 0;
    if (space.top[chunk] >= plan.cut) {
      for (int at = 0; at < batch.chunk; at += kWarpRead) {
        const Keys keys = read_keys(row, chunk * batch.chunk + at, lane);
#pragma unroll
        for (int i = 0; i < 4; ++i) mass += kept_mass(keys.at[i], keys.id(i), plan, maximum, excluded);
      }
      mass = warp_total(mass);
    }
    if (lane == 0) space.candidates[chunk] = mass;
  }
  if (!Threads::is_last(&space.arrivals[2], gridDim.x, scratch)) return;

  uint64_t masses[kChunksPerThread];
  uint64_t mine = 0;
#pragma unroll
  for (int i = 0; i < kChunksPerThread; ++i) {
    const int chunk = threadIdx.x * kChunksPerThread + i;
    masses[i] = chunk < chunks ? load_fresh(&space.candidates[chunk]) : 0;
    mine += masses[i];
  }
  const uint64_t total = Threads::sum(mine, scratch);
  if (tokens != nullptr) {
    if (threadIdx.x != 0) return;
    const int64_t token = tokens[row_index];
    const bool there = token >= 0 && token < batch.width;
    const int id = there ? static_cast<int>(token) : batch.width;
    weights[2 * row_index] = kept_mass(row.key_at(id), id, plan, maximum, -1);
    weights[2 * row_index + 1] = total;
    return;
  }
  if (total == 0) {
    if (threadIdx.x == 0) drawn[row_index] = -1;
    return;
  }
  const uint64_t pick = high_product(bits[row_index], total);
  uint64_t before = Threads::sum_before(mine, scratch);
#pragma unroll
  for (int i = 0; i < kChunksPerThread; ++i) {
    if (before <= pick && pick < before + masses[i]) {
      chosen = threadIdx.x * kChunksPerThread + i;
      left = pick - before;
    }
    before += masses[i];
  }
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  const int token = pick_in_chunk(row, batch.chunk, chosen, left, plan, maximum, excluded);
  if (threadIdx.x == 0) drawn[row_index] = token;
}

// The weight of every entry.
SM70_KERNEL((kPlanThreads), sampling_masses, SamplingBatch batch, const RowWorkspace* workspace, const RowPlan* plans,
            uint64_t* masses) {
  __shared__ Threads::Scratch scratch;
  const int row_index = blockIdx.y;
  const RowWorkspace& space = workspace[row_index];
  const RowPlan plan = plans[row_index];
  const RowReader row = reader_of(batch, row_index, plan.flags == 0);
  const int chunks = ceil_divide(batch.width, batch.chunk);
  int chunk_of_top = 0;
  const uint32_t top = top_of_row(space, chunks, chunk_of_top, scratch);
  uint64_t* out = masses + static_cast<int64_t>(row_index) * batch.width;
  int one = -1;
  if (plan.flags == kGreedy) one = lowest_maximum(row, batch.chunk, chunk_of_top, top);
  const double maximum = value_of(top);
  for (int id = blockIdx.x * kPlanThreads + threadIdx.x; id < batch.width; id += gridDim.x * kPlanThreads)
    out[id] = plan.flags == 0 ? kept_mass(row.key_at(id), id, plan, maximum, -1) : id == one ? kMassOne : 0;
}
