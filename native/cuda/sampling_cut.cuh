// Cutting logits by a plan that is known, and finding the id at which a tie is split.
#ifndef SM70_CUDA_SAMPLING_CUT_CUH_
#define SM70_CUDA_SAMPLING_CUT_CUH_

#include "sampling_device.cuh"

namespace sm70 {
namespace {

// Writes quotients where the plan keeps them and the mask elsewhere; one warp, one read of the row from `base` on.
__device__ void cut_read(const RowReader& row, float* out, int base, int lane, const RowPlan& plan, float mask) {
  Values values = read_values(row, base, lane);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float value = values.at[i];
    if (!stays(ordered_key(value), values.id(i), plan)) values.at[i] = mask;
  }
  write_values(row, out, values);
}

// Masks a chunk without reading it; by one warp.
__device__ void mask_chunk(const RowReader& row, float* out, int chunk_size, int chunk, int lane, float mask) {
  for (int at = 0; at < chunk_size; at += kWarpRead) {
    const int base = chunk * chunk_size + at;
    Values values = {{mask, mask, mask, mask}, row.vectors ? base + 4 * lane : base + lane, row.vectors ? 1 : kWarp};
    write_values(row, out, values);
  }
}

// Cuts the chunks of a slice whose largest key is at least `low`; by a block of kThreads.
template <int kThreads>
__device__ void cut_slice(const RowReader& row, const SamplingBatch& batch, const Slice& slice, const uint32_t* tops,
                          uint32_t low, const RowPlan& plan, const CutTarget& target, int row_index) {
  float* out = target.logits + row_index * batch.stride;
  const int lane = threadIdx.x % kWarp;
  constexpr int kWarps = kThreads / kWarp;
  // A lane looks at one chunk of 32 that its warp takes turns with: neighbours of a slice go to different warps.
  for (int turn = threadIdx.x / kWarp; slice.first + turn < slice.end; turn += kWarps * kWarp) {
    const int mine = slice.first + turn + lane * kWarps;
    uint32_t reaching = __ballot_sync(kFullMask, mine < slice.end && tops[mine] >= low);
    for (; reaching != 0; reaching &= reaching - 1) {
      const int chunk = slice.first + turn + (__ffs(static_cast<int>(reaching)) - 1) * kWarps;
      for (int at = 0; at < batch.chunk; at += kWarpRead)
        cut_read(row, out, chunk * batch.chunk + at, lane, plan, target.mask_value);
    }
  }
}

// The entries of a slice that are equal to `key`; by a block, to every thread.
template <int kThreads>
__device__ uint32_t count_ties(const RowReader& row, const SamplingBatch& batch, const Slice& slice,
                               const uint32_t* tops, uint32_t key, typename Block<kThreads>::Scratch& scratch) {
  const int lane = threadIdx.x % kWarp;
  uint32_t here = 0;
  for (int chunk = slice.first + threadIdx.x / kWarp; chunk < slice.end; chunk += kThreads / kWarp) {
    if (tops[chunk] < key) continue;
    for (int at = 0; at < batch.chunk; at += kWarpRead) {
      const Keys keys = read_keys(row, chunk * batch.chunk + at, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) here += keys.at[i] == key;
    }
  }
  return Block<kThreads>::sum(here, scratch);
}

// The slice that holds the `rank`-th highest id of a tie, from its entries in each slice; `rank` becomes that in the
// slice. There are that many.
__device__ int slice_of_tie(const uint32_t* ties, int slices, uint32_t& rank) {
  int slice = slices - 1;
  for (uint32_t here = load_fresh(&ties[slice]); here < rank; here = load_fresh(&ties[--slice])) rank -= here;
  return slice;
}

// The id of the `rank`-th (from 1) highest id with `key` in a slice, which holds that many; by a block, to every
// thread. `ties` is shared memory.
template <int kThreads>
__device__ uint32_t locate_tie(const RowReader& row, const SamplingBatch& batch, const Slice& slice,
                               const uint32_t* tops, uint32_t key, uint32_t rank, uint32_t (&ties)[kMaxChunks],
                               typename Block<kThreads>::Scratch& scratch) {
  constexpr int kWarps = kThreads / kWarp;
  constexpr int kEach = kMaxChunks / kThreads;
  __shared__ int chosen;
  __shared__ uint32_t left;
  __shared__ uint32_t id;
  const int lane = threadIdx.x % kWarp;
  __syncthreads();
  for (int chunk = slice.first + threadIdx.x / kWarp; chunk < slice.end; chunk += kWarps) {
    uint32_t here = 0;
    if (tops[chunk] >= key) {
      for (int at = 0; at < batch.chunk; at += kWarpRead) {
        const Keys keys = read_keys(row, chunk * batch.chunk + at, lane);
#pragma unroll
        for (int i = 0; i < 4; ++i) here += keys.at[i] == key;
      }
    }
    here = warp_total(here);
    if (lane == 0) ties[chunk - slice.first] = here;
  }
  __syncthreads();
  // Thread t looks at the t-th group of chunks from the end, so that the sum before it is of higher ids.
  const int high = slice.end - slice.first - 1 - kEach * static_cast<int>(threadIdx.x);
  uint32_t mine = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) mine += high - i >= 0 ? ties[high - i] : 0;
  uint32_t before = static_cast<uint32_t>(Block<kThreads>::sum_before(mine, scratch));
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t here = high - i >= 0 ? ties[high - i] : 0;
    if (before < rank && rank <= before + here) {
      chosen = slice.first + high - i;
      left = rank - before;
    }
    before += here;
  }
  __syncthreads();
  if (threadIdx.x < kWarp) {
    uint32_t open = left;
    const int base = chosen * batch.chunk;
    for (int at = batch.chunk - kWarp; at >= 0; at -= kWarp) {
      const uint32_t equal = __ballot_sync(kFullMask, row.key_at(base + at + lane) == key);
      const uint32_t count = __popc(equal);
      if (count < open) {
        open -= count;
        continue;
      }
      // This lane is the one when it is a tie and `open` ties stand at it or above it.
      if ((equal >> lane & 1) != 0 && __popc(equal >> lane) == static_cast<int>(open)) id = base + at + lane;
      break;
    }
  }
  __syncthreads();
  return id;
}

}  // namespace
}  // namespace sm70

#endif  // SM70_CUDA_SAMPLING_CUT_CUH_
