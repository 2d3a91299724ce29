// The plan of each row from its chunk maxima: the k-th largest maximum bounds the k-th largest value from below, so
// only chunks that reach it are read again; a row with top-p alone is summed into bins of mass instead. The last block
// of a row decides; what it cannot decide alone it leaves to the finish kernel as a task.
#include "sampling_bins.cuh"
#include "sampling_device.cuh"

using namespace sm70;

namespace {

constexpr int kWarps = kPlanThreads / kWarp;
constexpr int kTopsPerThread = kMaxChunks / kPlanThreads;
constexpr int kBinsPerThread = (kMassBins + kPlanThreads - 1) / kPlanThreads;
using Threads = Block<kPlanThreads>;

union Shared {
  uint32_t histogram[256];
  uint16_t chunks[kMaxChunks];
  uint32_t bins[kMassBins];
  uint64_t sorted[kSortCapacity];
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

// The chunks that one block of a row walks.
struct Slice {
  int first, end;
  __device__ explicit Slice(const SamplingBatch& batch) {
    const int chunks = ceil_divide(batch.width, batch.chunk);
    const int each = ceil_divide(chunks, gridDim.x);
    first = blockIdx.x * each;
    end = min(chunks, first + each);
  }
};

// Entries above the bound go to the candidates; entries equal to it are only counted, by slice. `tops` are the maxima
// of the chunks, as kth_largest takes them.
__device__ void gather_above(const RowReader& row, const SamplingBatch& batch, uint32_t bound,
                             const uint32_t (&tops)[kTopsPerThread], RowWorkspace& space,
                             uint16_t (&reaching)[kMaxChunks], Threads::Scratch& scratch) {
  __shared__ uint32_t count;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  const Slice slice(batch);
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
      const Quad quad = read_quad(row, chunk * batch.chunk + at, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        equal += quad.key[i] == bound;
        if (quad.key[i] <= bound) continue;
        const uint32_t place = atomicAdd(&space.found, 1u);
        if (place < kSortCapacity)
          space.candidates[place] = static_cast<uint64_t>(quad.key[i]) << 32 | (quad.first + i * quad.step);
      }
    }
  }
  equal = Threads::sum(equal, scratch);
  if (threadIdx.x == 0) space.ties[blockIdx.x] = equal;
}

__device__ uint32_t key_part(uint64_t candidate) { return static_cast<uint32_t>(candidate >> 32); }

// Decides a row with a small k. Needs the `found` candidates complete.
__device__ void decide_sorted(uint32_t top_k, float top_p, uint32_t bound, uint32_t top, RowWorkspace& space,
                              RowPlan& plan, uint64_t (&sorted)[kSortCapacity], Threads::Scratch& scratch) {
  const int found = load_fresh(&space.found);
  if (found > kSortCapacity) {
    if (threadIdx.x == 0) space.task = kByDigits;
    return;
  }
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
  if (top_p == 1.0f) {
    if (threadIdx.x == 0) plan = {threshold, threshold, 0, 0};
    return;
  }
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
    if (threadIdx.x != 0) return;
    plan = {threshold, bound, 0, 0};
    if (rank >= ties) return;
    // Which slice holds the rank-th highest id.
    uint32_t left = static_cast<uint32_t>(rank);
    int slice = gridDim.x - 1;
    for (uint32_t here = load_fresh(&space.ties[slice]); here < left; here = load_fresh(&space.ties[--slice]))
      left -= here;
    space.low = bound;
    space.slice = slice;
    space.rank = left;
    space.task = kLocateTie;
    return;
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
  if (threadIdx.x != 0) return;
  const uint32_t cut = key_part(sorted[last]);
  const bool split = last + 1 < survivors && key_part(sorted[last + 1]) == cut;
  plan = {threshold, cut, split ? static_cast<uint32_t>(sorted[last]) : 0, 0};
}

// Adds the slice's masses to the row's total and, coarsely, to its bins.
__device__ void bin_masses(const RowReader& row, const SamplingBatch& batch, double maximum, RowWorkspace& space,
                           uint32_t (&bins)[kMassBins], Threads::Scratch& scratch) {
  for (int bin = threadIdx.x; bin < kMassBins; bin += kPlanThreads) bins[bin] = 0;
  __syncthreads();
  const Slice slice(batch);
  const int lane = threadIdx.x % kWarp;
  uint64_t mine = 0;
  for (int chunk = slice.first + threadIdx.x / kWarp; chunk < slice.end; chunk += kWarps) {
    for (int at = 0; at < batch.chunk; at += kWarpRead) {
      const Quad quad = read_quad(row, chunk * batch.chunk + at, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint64_t distance = 0;
        const bool weighs = quad.key[i] != 0 && octaves_below(value_of(quad.key[i]), maximum, distance);
        const uint32_t power = power_at(static_cast<uint32_t>(distance));
        if (weighs) mine += mass_from(power, distance >> 32);
        // Ties put a whole warp on one bin: then one lane adds for all.
        const bool same = __all_sync(kFullMask, quad.key[i] == __shfl_sync(kFullMask, quad.key[i], 0));
        if (!weighs || (same && lane != 0)) continue;
        atomicAdd(&bins[distance >> 27], (power >> kCoarseShift) * (same ? kWarp : 1));
      }
    }
  }
  mine = Threads::sum(mine, scratch);
  if (threadIdx.x == 0 && mine != 0) atomicAdd(&space.total, mine);
  for (int bin = threadIdx.x; bin < kMassBins; bin += kPlanThreads)
    if (bins[bin] != 0) atomicAdd(&space.coarse[bin], static_cast<uint64_t>(bins[bin]));
}

// The smallest key whose bin is at most `bin`; -1 gives the first key past the largest.
__device__ uint32_t first_key_of_bin(int bin, uint32_t top, double maximum, Threads::Scratch& scratch) {
  if (bin < 0) return top + 1;
  uint32_t base = 0;  // a key whose bin is larger: no value has it
  for (int shift = 24; shift >= 0; shift -= 8) {
    const uint32_t step = threadIdx.x << shift;
    const uint32_t key = base + step;
    uint64_t distance = 0;
    const bool past_the_end = key < base || key > top;
    const bool reached =
        past_the_end || (key > kKeyNegativeInfinity && octaves_below(value_of(key), maximum, distance) &&
                         static_cast<int>(distance >> 27) <= bin);
    base += (Threads::sum(reached ? 0u : 1u, scratch) - 1) << shift;
  }
  return base + 1;
}

// Finds the bins that can hold the edge and leaves their range of keys as a task.
__device__ void decide_bin(float top_p, uint32_t top, RowWorkspace& space, Threads::Scratch& scratch) {
  __shared__ int first_bin;  // the edge is not before it
  __shared__ int last_bin;   // nor after it
  const uint64_t limit = nucleus_limit(top_p, load_fresh(&space.total));
  if (threadIdx.x == 0) last_bin = kMassBins - 1;
  MassRange bins[kBinsPerThread];
  MassRange mine = {0, 0};
#pragma unroll
  for (int i = 0; i < kBinsPerThread; ++i) {
    const int bin = threadIdx.x * kBinsPerThread + i;
    bins[i] = bin < kMassBins ? mass_range(load_fresh(&space.coarse[bin]), bin / kBinsPerOctave) : MassRange{0, 0};
    mine.least += bins[i].least;
    mine.most += bins[i].most;
  }
  MassRange before = {Threads::sum_before(mine.least, scratch), Threads::sum_before(mine.most, scratch)};
#pragma unroll
  for (int i = 0; i < kBinsPerThread; ++i) {
    const int bin = threadIdx.x * kBinsPerThread + i;
    if (before.most < limit && limit <= before.most + bins[i].most) first_bin = bin;
    if (before.least < limit && limit <= before.least + bins[i].least) last_bin = bin;
    before.least += bins[i].least;
    before.most += bins[i].most;
  }
  __syncthreads();
  const double maximum = value_of(top);
  const uint32_t low = first_key_of_bin(last_bin, top, maximum, scratch);
  const uint32_t high = first_key_of_bin(first_bin - 1, top, maximum, scratch) - 1;
  if (threadIdx.x != 0) return;
  space.limit = limit;
  space.low = low;
  space.high = high;
  space.task = kEdgeInRange;
}

}  // namespace

SM70_KERNEL((kPlanThreads), sampling_plan, SamplingBatch batch, RowWorkspace* workspace, RowPlan* plans) {
  __shared__ Shared shared;
  __shared__ Threads::Scratch scratch;
  const int row_index = blockIdx.y;
  RowWorkspace& space = workspace[row_index];
  RowPlan& plan = plans[row_index];
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
  const uint32_t top = Threads::largest(largest, scratch);
  const uint32_t low = ~Threads::largest(~smallest, scratch);

  const uint32_t parameters = parameter_flags(top_p, temperature);
  const uint32_t flags = parameters & kBadParameter ? kBadParameter : row_fault(top) ? row_fault(top) : parameters;
  const bool first_thread = blockIdx.x == 0 && threadIdx.x == 0;
  if (flags != 0 || (top_k == 0 && top_p == 1.0f)) {
    if (first_thread) plan = {0, 0, 0, flags};
    return;
  }
  if (top_k > static_cast<uint32_t>(chunks) / 2) {
    if (first_thread) space.task = kByDigits;
    return;
  }
  const RowReader row = reader_of(batch, row_index, true);
  if (top_k != 0) {
    const uint32_t bound = kth_largest(tops, top_k, low, top, shared.histogram, scratch);
    gather_above(row, batch, bound, tops, space, shared.chunks, scratch);
    if (Threads::is_last(&space.arrivals[0], gridDim.x, scratch))
      decide_sorted(top_k, top_p, bound, top, space, plan, shared.sorted, scratch);
  } else {
    bin_masses(row, batch, value_of(top), space, shared.bins, scratch);
    if (Threads::is_last(&space.arrivals[0], gridDim.x, scratch)) decide_bin(top_p, top, space, scratch);
  }
}
