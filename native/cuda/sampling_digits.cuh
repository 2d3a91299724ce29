// The plan of a row by the digits of its keys: always possible, whatever the row looks like. All blocks of the row walk
// it together, a step at a time: each claims slices until none is left, the block that ends the last one decides the
// step and writes the next, and the others wait for that. A block waits only for slices that running blocks have
// claimed, so the walk ends however few of the blocks the device holds at a time.
#ifndef SM70_CUDA_SAMPLING_DIGITS_CUH_
#define SM70_CUDA_SAMPLING_DIGITS_CUH_

#include "sampling_cut.cuh"

namespace sm70 {
namespace {

enum WalkKind : uint32_t { kCountDigits = 0, kWeighDigits = 1, kCountTies = 2, kCutRow = 3, kWalkDone = 4 };

using Finish = Block<kFinishThreads>;
constexpr int kDigitsPerThread = kDigits / kFinishThreads;

union WalkShared {
  Limbs<kDigits> limbs;
  uint32_t ties[kMaxChunks];
};

// The row as every step of the walk sees it. Lies in shared memory: the walk is a call of its own, and what it is about
// should cost the kernel around it no registers.
struct WalkRow {
  SamplingBatch batch;
  CutTarget target;
  RowReader row;
  RowWorkspace* space;
  RowPlan* plan;
  int row_index;
  uint32_t top;
  uint32_t top_k;
  float top_p;
  int slices;
};

__device__ int digit_shift(const WalkStep& step) {
  return max(kWarp - __clz(static_cast<int>(step.high - step.low)) - kDigitBits, 0);
}

// Adds the slice's entries with keys in [low, high], or their masses, to the row's amounts by digit.
__device__ void add_digits(const WalkRow& walk, const Slice& slice, const WalkStep& step, Limbs<kDigits>& limbs) {
  const double maximum = value_of(walk.top);
  const bool weigh = step.kind == kWeighDigits;
  const int shift = digit_shift(step);
  const int lane = threadIdx.x % kWarp;
  const uint32_t least = max(step.low, walk.space->low);
  __syncthreads();
  for (int digit = threadIdx.x; digit < kDigits; digit += kFinishThreads) limbs.clear(digit);
  __syncthreads();
  for (int chunk = slice.first + threadIdx.x / kWarp; chunk < slice.end; chunk += kFinishThreads / kWarp) {
    if (walk.space->top[chunk] < least) continue;
    for (int at = 0; at < walk.batch.chunk; at += kWarpRead) {
      const Keys keys = read_keys(walk.row, chunk * walk.batch.chunk + at, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t key = keys.at[i];
        const bool in_range = key >= step.low && key <= step.high && key != 0;
        const uint64_t amount = !in_range ? 0 : weigh ? mass_of(value_of(key), maximum) : 1;
        limbs.add_from_warp(key, in_range ? (key - step.low) >> shift : 0, amount);
      }
    }
  }
  __syncthreads();
  for (int digit = threadIdx.x; digit < kDigits; digit += kFinishThreads) {
    const uint64_t amount = limbs.total(digit);
    if (amount != 0) atomicAdd(&walk.space->candidates[digit], amount);
  }
}

// The step behind a plan that is known.
__device__ WalkStep with_plan(const WalkRow& walk, const RowPlan& plan) {
  if (threadIdx.x == 0) *walk.plan = plan;
  WalkStep next = {};
  next.kind = walk.target.logits != nullptr ? kCutRow : kWalkDone;
  return next;
}

// What the amounts by digit say: the next digit, or the edge itself.
__device__ WalkStep decide_digit(const WalkRow& walk, WalkStep step, Finish::Scratch& scratch) {
  __shared__ uint32_t chosen;
  __shared__ uint64_t above;
  __shared__ uint64_t amount;
  // Thread t looks at the t-th group of digits from the top, so that the sum before it is of larger keys.
  const int upper = kDigits - 1 - kDigitsPerThread * static_cast<int>(threadIdx.x);
  uint64_t here[kDigitsPerThread];
  uint64_t mine = 0;
#pragma unroll
  for (int i = 0; i < kDigitsPerThread; ++i) {
    here[i] = load_fresh(&walk.space->candidates[upper - i]);
    walk.space->candidates[upper - i] = 0;
    mine += here[i];
  }
  if (step.limit == 0) step.limit = nucleus_limit(walk.top_p, Finish::sum(mine, scratch));
  uint64_t before = step.above + Finish::sum_before(mine, scratch);
#pragma unroll
  for (int i = 0; i < kDigitsPerThread; ++i) {
    if (before < step.limit && step.limit <= before + here[i]) {
      chosen = upper - i;
      above = before;
      amount = here[i];
    }
    before += here[i];
  }
  __syncthreads();
  const int shift = digit_shift(step);
  const uint32_t low = step.low + (chosen << shift);
  step.above = above;
  if (shift != 0) {
    step.low = low;
    step.high = min(step.high, low + ((1u << shift) - 1));
    return step;
  }
  if (step.kind == kCountDigits) {
    if (walk.top_p == 1.0f) return with_plan(walk, {low, low, 0, 0});
    step = {};
    step.kind = kWeighDigits;
    step.low = low;
    step.high = walk.top;
    step.threshold = low;
    return step;
  }
  const uint64_t each = mass_of(value_of(low), value_of(walk.top));
  const uint64_t rank = (step.limit - above + each - 1) / each;
  if (rank >= amount / each) return with_plan(walk, {step.threshold, low, 0, 0});
  step.kind = kCountTies;
  step.low = step.high = low;
  step.rank = static_cast<uint32_t>(rank);
  return step;
}

// The work of one slice in a step.
__device__ void walk_slice(const WalkRow& walk, int index, const WalkStep& step, WalkShared& shared,
                           Finish::Scratch& scratch) {
  const Slice slice(walk.batch, index, walk.slices);
  if (step.kind == kCutRow) {
    RowPlan plan;
    plan.threshold = load_fresh(&walk.plan->threshold);
    plan.cut = load_fresh(&walk.plan->cut);
    plan.first_tie = load_fresh(&walk.plan->first_tie);
    plan.flags = 0;
    cut_slice<kFinishThreads>(walk.row, walk.batch, slice, walk.space->top, walk.space->low, plan, walk.target,
                              walk.row_index);
  } else if (step.kind == kCountTies) {
    const uint32_t ties = count_ties<kFinishThreads>(walk.row, walk.batch, slice, walk.space->top, step.low, scratch);
    if (threadIdx.x == 0) walk.space->ties[index] = ties;
  } else {
    add_digits(walk, slice, step, shared.limbs);
  }
}

// What follows on a step that all slices have taken; by the block that ended it.
__device__ WalkStep next_step(const WalkRow& walk, const WalkStep& step, WalkShared& shared, Finish::Scratch& scratch) {
  if (step.kind == kCutRow) {
    WalkStep done = {};
    done.kind = kWalkDone;
    return done;
  }
  if (step.kind != kCountTies) return decide_digit(walk, step, scratch);
  uint32_t rank = step.rank;
  const Slice slice(walk.batch, slice_of_tie(walk.space->ties, walk.slices, rank), walk.slices);
  const uint32_t id =
      locate_tie<kFinishThreads>(walk.row, walk.batch, slice, walk.space->top, step.low, rank, shared.ties, scratch);
  return with_plan(walk, {step.threshold, step.low, id, 0});
}

__device__ WalkStep first_step(const WalkRow& walk) {
  WalkStep step = {};
  step.kind = walk.top_k != 0 ? kCountDigits : kWeighDigits;
  step.low = 1;
  step.high = walk.top;
  step.limit = walk.top_k;
  return step;
}

// Every block of the row calls this; the row's plan, and its cut, are done when the last of them returns.
__device__ __noinline__ void walk_row(const WalkRow& walk, WalkShared& shared, Finish::Scratch& scratch) {
  __shared__ int claim;
  __shared__ WalkStep step;
  RowWorkspace& space = *walk.space;
  if (threadIdx.x == 0) step = first_step(walk);
  __syncthreads();
  for (int at = 0; step.kind != kWalkDone; ++at) {
    const WalkStep now = step;
    int index = 0;
    while (index < walk.slices) {
      __syncthreads();
      if (threadIdx.x == 0) claim = static_cast<int>(atomicAdd(&space.claimed[at], 1u));
      __syncthreads();
      index = claim;
      if (index < walk.slices) {
        walk_slice(walk, index, now, shared, scratch);
        if (Finish::is_last(&space.finished[at], walk.slices, scratch)) {
          const WalkStep next = next_step(walk, now, shared, scratch);
          // Every thread's part of it is there before the step is.
          __threadfence();
          __syncthreads();
          if (threadIdx.x == 0) {
            space.walk[at + 1] = next;
            __threadfence();
            atomicAdd(&space.walk_ready, 1u);
          }
          __syncthreads();
        }
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      // Volatile: of a loop over any other load an assembler may think that it ends.
      const volatile uint32_t* ready = &space.walk_ready;
      while (*ready <= static_cast<uint32_t>(at)) {
      }
      __threadfence();
      const WalkStep* next = &space.walk[at + 1];
      step.kind = load_fresh(&next->kind);
      step.low = load_fresh(&next->low);
      step.high = load_fresh(&next->high);
      step.threshold = load_fresh(&next->threshold);
      step.above = load_fresh(&next->above);
      step.limit = load_fresh(&next->limit);
      step.rank = load_fresh(&next->rank);
    }
    __syncthreads();
  }
}

}  // namespace
}  // namespace sm70

#endif  // SM70_CUDA_SAMPLING_DIGITS_CUH_
