// The plan of each row from its chunk maxima: the k-th largest maximum bounds the k-th largest value from below, so
// only chunks that reach it are read again, and the others are masked at once where the logits are to be cut. A row
// with a large k, or top-p alone, is counted and summed into bins instead. The last block of a row decides; what it
// cannot decide alone it leaves to the finish kernel as a task.
#include "sampling_bins.cuh"
#include "sampling_cut.cuh"

using namespace sm70;

namespace {

constexpr int kWarps = kPlanThreads / kWarp;
constexpr int kTopsPerThread = kMaxChunks / kPlanThreads;
constexpr int kBinsPerThread = (kMassBins + kPlanThreads - 1) / kPlanThreads;
using Threads = Block<kPlanThreads>;

struct Bins {
  uint32_t coarse[kMassBins];
  uint32_t counts[kMassBins];
};

union Shared {
  uint32_t histogram[256];
  uint16_t chunks[kMaxChunks];
  Bins bins;
  uint64_t sorted[kSortCapacity];
  uint32_t ties[kMaxChunks];
  uint8_t below[kMaxChunks];
};

// The k-th largest (from 1) of the block's kTopsPerThread keys a thread; keys are in [low, high].
__device__ uint32_t kth_largest(const uint32_t (&keys)[kTopsPerThread], uint32_t k, uint32_t low, uint32_t high,
                                uint32_t (&histogram)[256], Threads::Scratch& scratch) {
  __shared__ uint32_t chosen;
  __shared__ uint32_t above;
  // Digits start below the bits that all keys share.
  int bits = kWarp - __clz(static_cast<int>(low ^ high));
  uint32_t prefix = bits == kWarp ? 0 : high >> bits << bits;
  while (bits > 0) {
    const int shift = max(bits - 8, 0);
    const uint32_t known = bits == kWarp ? 0 : ~0u << bits;
    histogram[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTopsPerThread; ++i)
      if (keys[i] != 0 && (keys[i] & known) == prefix) atomicAdd(&histogram[(keys[i] ^ prefix) >> shift], 1u);
    __syncthreads();
    // Thread t looks at digit 255 - t, so that the sum before it is of the larger digits.
    const uint32_t digit = 255 - threadIdx.x;
    const uint32_t here = histogram[digit];
    const uint32_t larger = static_cast<uint32_t>(Threads::sum_before(here, scratch));
    if (larger < k && k <= larger + here) {
      chosen = digit;
      above = larger;
    }
    __syncthreads();
    prefix |= chosen << shift;
    k -= above;
    bits = shift;
  }
  return prefix;
}

// Entries above the bound go to the candidates; entries equal to it are only counted, by slice. `tops` are the maxima
// of the chunks, as kth_largest takes them.
__device__ void gather_above(const RowReader& row, const SamplingBatch& batch, const Slice& slice, uint32_t bound,
                             const uint32_t (&tops)[kTopsPerThread], RowWorkspace& space,
                             uint16_t (&reaching)[kMaxChunks], Threads::Scratch& scratch) {
  __shared__ uint32_t count;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kTopsPerThread; ++i) {
    const int chunk = i * kPlanThreads + threadIdx.x;
    if (chunk >= slice.first && chunk < slice.end && tops[i] >= bound) reaching[atomicAdd(&count, 1u)] = chunk;
  }
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  uint32_t equal = 0;
  for (uint32_t next = threadIdx.x / kWarp; next < count; next += kWarps) {
    const int chunk = reaching[next];
    for (int at = 0; at < batch.chunk; at += kWarpRead) {
      const Keys keys = read_keys(row, chunk * batch.chunk + at, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        equal += keys.at[i] == bound;
        if (keys.at[i] <= bound) continue;
        const uint32_t place = atomicAdd(&space.found, 1u);
        if (place < kSortCapacity) space.candidates[place] = static_cast<uint64_t>(keys.at[i]) << 32 | keys.id(i);
      }
    }
  }
  equal = Threads::sum(equal, scratch);
  if (threadIdx.x == 0) space.ties[blockIdx.x] = equal;
}

__device__ uint32_t key_part(uint64_t candidate) { return static_cast<uint32_t>(candidate >> 32); }

// Masks the slice's chunks that lie below the bound, without reading them.
__device__ void mask_below(const RowReader& row, const SamplingBatch& batch, const Slice& slice, uint32_t bound,
                           const uint32_t* tops, float* out, float mask, uint8_t (&below)[kMaxChunks]) {
  __syncthreads();
  for (int chunk = slice.first + threadIdx.x; chunk < slice.end; chunk += kPlanThreads)
    below[chunk] = tops[chunk] < bound;
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  for (int chunk = slice.first + threadIdx.x / kWarp; chunk < slice.end; chunk += kWarps)
    if (below[chunk] != 0) mask_chunk(row, out, batch.chunk, chunk, lane, mask);
}

// Leaves the whole row to the walk by digits; chunks below `low` are none of its business.
__device__ void leave_to_digits(RowWorkspace& space, uint32_t low) {
  for (int digit = threadIdx.x; digit < kDigits; digit += kPlanThreads) space.candidates[digit] = 0;
  if (threadIdx.x != 0) return;
  space.low = low;
  space.task = kByDigits;
}

// The plan of a row with a small k and `found` candidates above the bound; to every thread.
__device__ RowPlan decide_sorted(const RowReader& row, const SamplingBatch& batch, uint32_t top_k, float top_p,
                                 uint32_t bound, uint32_t top, int found, const RowWorkspace& space, Shared& shared,
                                 Threads::Scratch& scratch) {
  uint64_t (&sorted)[kSortCapacity] = shared.sorted;
  const int size = power_of_two_from(found);
  for (int i = threadIdx.x; i < size; i += kPlanThreads) sorted[i] = i < found ? load_fresh(&space.candidates[i]) : 0;
  Threads::sort_descending(sorted, size);

  // With k or more above the bound the k-th is among them and no tie of the bound survives; else the bound is the k-th.
  const bool inside = found >= static_cast<int>(top_k);
  const uint32_t threshold = inside ? key_part(sorted[top_k - 1]) : bound;
  const double maximum = value_of(top);
  uint32_t survive = 0;
  uint64_t mass = 0;
  for (int i = threadIdx.x; i < found; i += kPlanThreads) {
    if (key_part(sorted[i]) < threshold) continue;
    ++survive;
    mass += mass_of(value_of(key_part(sorted[i])), maximum);
  }
  const int survivors = Threads::sum(survive, scratch);
  if (top_p == 1.0f) return {threshold, threshold, 0, 0};
  const uint64_t strict = Threads::sum(mass, scratch);
  uint32_t tie_count = 0;
  if (!inside)
    for (int slice = threadIdx.x; slice < static_cast<int>(gridDim.x); slice += kPlanThreads)
      tie_count += load_fresh(&space.ties[slice]);
  const uint64_t ties = Threads::sum(tie_count, scratch);
  const uint64_t each = ties != 0 ? mass_of(value_of(bound), maximum) : 0;
  const uint64_t limit = nucleus_limit(top_p, strict + ties * each);

  if (strict < limit) {
    // The edge is among the ties of the bound.
    const uint64_t rank = (limit - strict + each - 1) / each;
    if (rank >= ties) return {threshold, bound, 0, 0};
    uint32_t left = static_cast<uint32_t>(rank);
    const Slice slice(batch, slice_of_tie(space.ties, gridDim.x, left), gridDim.x);
    const uint32_t id = locate_tie<kPlanThreads>(row, batch, slice, space.top, bound, left, shared.ties, scratch);
    return {threshold, bound, id, 0};
  }
  // Mass ahead of each survivor; the edge is the last one that has less than the limit ahead.
  const int each_thread = ceil_divide(survivors, kPlanThreads);
  const int from = min(static_cast<int>(threadIdx.x) * each_thread, survivors);
  const int to = min(from + each_thread, survivors);
  uint64_t mine = 0;
  for (int i = from; i < to; ++i) mine += mass_of(value_of(key_part(sorted[i])), maximum);
  uint64_t ahead = Threads::sum_before(mine, scratch);
  uint32_t inside_nucleus = 0;
  for (int i = from; i < to; ++i) {
    inside_nucleus += ahead < limit;
    ahead += mass_of(value_of(key_part(sorted[i])), maximum);
  }
  const int last = static_cast<int>(Threads::sum(inside_nucleus, scratch)) - 1;
  const uint32_t cut = key_part(sorted[last]);
  const bool split = last + 1 < survivors && key_part(sorted[last + 1]) == cut;
  return {threshold, cut, split ? static_cast<uint32_t>(sorted[last]) : 0, 0};
}

// Adds the coarse masses of the slice to the row's bins and, where `count` asks for it, its entries.
__device__ void bin_slice(const RowReader& row, const SamplingBatch& batch, const BinScale& scale, bool count,
                          RowWorkspace& space, Bins& bins) {
  for (int bin = threadIdx.x; bin < kMassBins; bin += kPlanThreads) bins.coarse[bin] = bins.counts[bin] = 0;
  __syncthreads();
  const Slice slice(batch, blockIdx.x, gridDim.x);
  const int lane = threadIdx.x % kWarp;
  const int end = min(static_cast<int64_t>(slice.end) * batch.chunk, static_cast<int64_t>(batch.width));
  const int base = slice.first * batch.chunk + threadIdx.x / kWarp * kWarpRead;
  each_read(row, base, end, kWarps * kWarpRead, lane, [&](const Values& values) {
    uint32_t bin[4];
    uint32_t coarse[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float position = scale.position(values.at[i]);
      bin[i] = bin_of(position);
      coarse[i] = bin[i] < kMassBins ? scale.coarse(position) : 0;
    }
    // Ties put a whole warp on one bin: then one lane adds for all.
    const uint32_t lead = __shfl_sync(kFullMask, bin[0], 0);
    const bool same = bin[0] == lead && bin[1] == lead && bin[2] == lead && bin[3] == lead;
    if (__all_sync(kFullMask, same)) {
      const uint32_t sum = warp_total(coarse[0] + coarse[1] + coarse[2] + coarse[3]);
      if (lane == 0 && lead != kMassBins) {
        atomicAdd(&bins.coarse[lead], sum);
        if (count) atomicAdd(&bins.counts[lead], static_cast<uint32_t>(kWarpRead));
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (bin[i] == kMassBins) continue;
      atomicAdd(&bins.coarse[bin[i]], coarse[i]);
      if (count) atomicAdd(&bins.counts[bin[i]], 1u);
    }
  });
  __syncthreads();
  for (int bin = threadIdx.x; bin < kMassBins; bin += kPlanThreads) {
    if (bins.coarse[bin] == 0) continue;
    atomicAdd(&space.coarse[bin], static_cast<uint64_t>(bins.coarse[bin]));
    if (count) atomicAdd(&space.counts[bin], bins.counts[bin]);
  }
}

// Finds the bin of the k-th entry (`top_k` 0: off) and the bins that can hold the edge of the nucleus, and leaves them
// as a task.
__device__ void decide_bins(uint32_t top_k, float top_p, uint32_t top, uint32_t bits, RowWorkspace& space,
                            Threads::Scratch& scratch) {
  __shared__ int kth;  // bin of the k-th entry; kMassBins: off, or in no bin
  __shared__ uint32_t before_kth;
  __shared__ int first_bin;  // the edge is not before it
  __shared__ int last_bin;   // nor after it
  if (threadIdx.x == 0) {
    kth = kMassBins;
    before_kth = 0;
  }
  uint64_t coarse[kBinsPerThread];
  uint32_t entries[kBinsPerThread];
  uint32_t here = 0;
#pragma unroll
  for (int i = 0; i < kBinsPerThread; ++i) {
    const int bin = threadIdx.x * kBinsPerThread + i;
    coarse[i] = bin < kMassBins ? load_fresh(&space.coarse[bin]) : 0;
    const uint32_t counted = top_k != 0 && bin < kMassBins ? load_fresh(&space.counts[bin]) : 0;
    entries[i] = top_k != 0 ? counted : static_cast<uint32_t>(coarse[i] / kLeastCoarse);
    here += entries[i];
  }
  const uint32_t before = static_cast<uint32_t>(Threads::sum_before(here, scratch));
  if (top_k != 0 && before < top_k && top_k <= before + here) {
    uint32_t ahead = before;
#pragma unroll
    for (int i = 0; i < kBinsPerThread; ++i) {
      if (ahead < top_k && top_k <= ahead + entries[i]) {
        kth = threadIdx.x * kBinsPerThread + i;
        before_kth = ahead;
      }
      ahead += entries[i];
    }
  }
  __syncthreads();
  if (top_k != 0 && kth == kMassBins) return leave_to_digits(space, 0);
  if (threadIdx.x == 0) {
    first_bin = kth;
    last_bin = min(kth, kMassBins - 1);
  }
  MassRange bins[kBinsPerThread];
  MassRange mine = {0, 0};
#pragma unroll
  for (int i = 0; i < kBinsPerThread; ++i) {
    const int bin = threadIdx.x * kBinsPerThread + i;
    // Behind the k-th nothing counts, and of its own bin it is not known how much does.
    bins[i] = bin <= kth ? mass_range(coarse[i], entries[i], bin >> bits) : MassRange{0, 0};
    if (bin == kth) bins[i].least = 0;
    mine.least += bins[i].least;
    mine.most += bins[i].most;
  }
  const uint64_t limit_least = nucleus_limit(top_p, Threads::sum(mine.least, scratch));
  const uint64_t limit_most = nucleus_limit(top_p, Threads::sum(mine.most, scratch));
  MassRange ahead = {Threads::sum_before(mine.least, scratch), Threads::sum_before(mine.most, scratch)};
#pragma unroll
  for (int i = 0; i < kBinsPerThread; ++i) {
    const int bin = threadIdx.x * kBinsPerThread + i;
    if (top_p != 1.0f) {
      if (ahead.most < limit_least && limit_least <= ahead.most + bins[i].most) first_bin = bin;
      if (ahead.least < limit_most && limit_most <= ahead.least + bins[i].least) last_bin = bin;
    }
    ahead.least += bins[i].least;
    ahead.most += bins[i].most;
  }
  __syncthreads();
  uint32_t candidates = 0;
#pragma unroll
  for (int i = 0; i < kBinsPerThread; ++i) {
    const int bin = threadIdx.x * kBinsPerThread + i;
    if ((bin >= first_bin && bin <= last_bin) || bin == kth) candidates += entries[i];
  }
  if (Threads::sum(candidates, scratch) > kSortCapacity) return leave_to_digits(space, 0);
  if (threadIdx.x != 0) return;
  space.top_key = top;
  space.bin_bits = bits;
  space.ahead_of_kth = before_kth;
  space.ranges = {static_cast<float>(first_bin), static_cast<float>(last_bin + 1),
                  top_k != 0 ? static_cast<float>(kth) : infinity(),
                  top_k != 0 ? static_cast<float>(kth + 1) : infinity()};
  space.task = kInRange;
}

}  // namespace

// `scan_blocks`: blocks of a row of the scan kernel.
SM70_KERNEL((kPlanThreads), sampling_plan, SamplingBatch batch, RowWorkspace* workspace, RowPlan* plans,
            CutTarget target, int32_t scan_blocks) {
  __shared__ Shared shared;
  __shared__ Threads::Scratch scratch;
  const int row_index = blockIdx.y;
  RowWorkspace& space = workspace[row_index];
  const int chunks = ceil_divide(batch.width, batch.chunk);
  const int asked = batch.top_k == nullptr ? 0 : batch.top_k[row_index];
  const uint32_t top_k = asked > 0 && asked < batch.width ? asked : 0;
  const float top_p = batch.top_p == nullptr ? 1.0f : batch.top_p[row_index];
  const float temperature = batch.temperature == nullptr ? 1.0f : batch.temperature[row_index];

  uint32_t tops[kTopsPerThread];
  uint32_t largest = 0;
  uint32_t smallest = ~0u;
#pragma unroll
  for (int i = 0; i < kTopsPerThread; ++i) {
    const int chunk = i * kPlanThreads + threadIdx.x;
    tops[i] = chunk < chunks ? space.top[chunk] : 0;
    largest = max(largest, tops[i]);
    if (chunk < chunks) smallest = min(smallest, tops[i]);
  }
  static_assert(kMaxSlices <= kPlanThreads, "a block of the scan kernel a thread");
  const bool scanned = static_cast<int>(threadIdx.x) < scan_blocks;
  const uint32_t bottom = ~Threads::largest(scanned ? ~space.bottom[threadIdx.x] : 0, scratch);
  // A negative NaN is no chunk's largest.
  const uint32_t top = bottom < kKeyNegativeInfinity ? kKeyNan : Threads::largest(largest, scratch);
  const uint32_t low = ~Threads::largest(~smallest, scratch);

  const uint32_t parameters = parameter_flags(top_p, temperature);
  const uint32_t flags = parameters & kBadParameter ? kBadParameter : row_fault(top) ? row_fault(top) : parameters;
  const bool cuts = target.logits != nullptr;
  if (flags != 0 || (top_k == 0 && top_p == 1.0f)) {
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    plans[row_index] = {0, 0, 0, flags};
    if (flags != 0 || !cuts || temperature == 1.0f) return;
    space.low = 0;  // every entry is divided
    space.task = kCut;
    return;
  }
  const RowReader row = reader_of(batch, row_index, true);
  if (top_k == 0 || top_k > static_cast<uint32_t>(chunks) / 2) {
    const uint32_t bits = bin_bits(top, bottom);
    bin_slice(row, batch, BinScale(top, bits), top_k != 0, space, shared.bins);
    if (Threads::is_last(&space.arrivals[0], gridDim.x, scratch)) decide_bins(top_k, top_p, top, bits, space, scratch);
    return;
  }
  const uint32_t bound = kth_largest(tops, top_k, low, top, shared.histogram, scratch);
  const Slice slice(batch, blockIdx.x, gridDim.x);
  gather_above(row, batch, slice, bound, tops, space, shared.chunks, scratch);
  if (Threads::is_last(&space.arrivals[0], gridDim.x, scratch)) {
    const uint32_t found = load_fresh(&space.found);
    if (found > kSortCapacity) {
      leave_to_digits(space, bound);
    } else {
      const RowPlan plan = decide_sorted(row, batch, top_k, top_p, bound, top, found, space, shared, scratch);
      if (threadIdx.x == 0) {
        plans[row_index] = plan;
        space.low = bound;
        space.task = cuts ? kCut : kDone;
      }
    }
  }
  // The long part comes last: by then another block may already decide.
  if (!cuts) return;
  float* out = target.logits + row_index * batch.stride;
  mask_below(row, batch, slice, bound, space.top, out, target.mask_value, shared.below);
}
