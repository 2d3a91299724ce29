// What the plan kernel left open, by task: the edge of the nucleus in a known range of keys, the id of a tie in a known
// slice, or a whole row by the digits of its keys, which always works. Blocks of rows that are done leave at once.
#include "sampling_device.cuh"

using namespace sm70;

namespace {

constexpr int kWarps = kFinishThreads / kWarp;
constexpr int kDigitBits = 11;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kDigitsPerThread = kDigits / kFinishThreads;
constexpr int kLimbEntries = 1 << 18;
constexpr int kAhead = 3;  // chunks that a warp has in flight
using Threads = Block<kFinishThreads>;

struct Digits {
  Limbs<kDigits> limbs;
  uint64_t amount[kDigits];
};

union Shared {
  Digits digits;
  uint64_t sorted[kSortCapacity];
  uint32_t ties[kMaxChunks];
};

// The id of the `rank`-th (from 1) highest id with `key` among the chunks first .. end - 1, which hold that many.
__device__ uint32_t locate_tie(const RowReader& row, int chunk_size, const uint32_t* tops, int first, int end,
                               uint32_t key, uint32_t rank, uint32_t (&ties)[kMaxChunks], Threads::Scratch& scratch) {
  __shared__ int chosen;
  __shared__ uint32_t left;
  __shared__ uint32_t id;
  const int lane = threadIdx.x % kWarp;
  __syncthreads();
  for (int chunk = first + threadIdx.x / kWarp; chunk < end; chunk += kWarps) {
    uint32_t here = 0;
    if (tops[chunk] >= key) {
      for (int at = 0; at < chunk_size; at += kWarpRead) {
        const Quad quad = read_quad(row, chunk * chunk_size + at, lane);
#pragma unroll
        for (int i = 0; i < 4; ++i) here += quad.key[i] == key;
      }
    }
    here = warp_total(here);
    if (lane == 0) ties[chunk - first] = here;
  }
  __syncthreads();
  // Thread t looks at the t-th pair of chunks from the end, so that the sum before it is of higher ids.
  static_assert(kMaxChunks == 2 * kFinishThreads, "two chunks a thread");
  const int high = end - first - 1 - 2 * static_cast<int>(threadIdx.x);
  const uint32_t in_high = high >= 0 ? ties[high] : 0;
  const uint32_t in_low = high >= 1 ? ties[high - 1] : 0;
  const uint32_t before = static_cast<uint32_t>(Threads::sum_before(in_high + in_low, scratch));
  if (before < rank && rank <= before + in_high + in_low) {
    const bool is_high = rank <= before + in_high;
    chosen = first + (is_high ? high : high - 1);
    left = rank - before - (is_high ? 0 : in_high);
  }
  __syncthreads();
  if (threadIdx.x < kWarp) {
    uint32_t open = left;
    const int base = chosen * chunk_size;
    for (int at = chunk_size - kWarp; at >= 0; at -= kWarp) {
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

struct Edge {
  uint32_t key;
  uint64_t above;  // amount of larger keys
  uint64_t ties;   // amount of the key itself
};

// Counts the keys in [low, high] by digit, or weighs them; the amounts are in `digits.amount`. Narrows the range to the
// keys that are really there.
template <bool kByMass>
__device__ void count_digits(const RowReader& row, int shift, double maximum, uint32_t& low, uint32_t& high,
                             Digits& digits, Threads::Scratch& scratch) {
  const int lane = threadIdx.x % kWarp;
  for (int digit = threadIdx.x; digit < kDigits; digit += kFinishThreads) {
    digits.limbs.clear(digit);
    digits.amount[digit] = 0;
  }
  __syncthreads();
  uint32_t smallest = ~0u;
  uint32_t largest = 0;
  for (int64_t start = 0; start < row.width; start += kLimbEntries) {
    const int end = min(start + kLimbEntries, static_cast<int64_t>(row.width));
    for (int base = start + threadIdx.x / kWarp * kWarpRead; base < end; base += kWarps * kWarpRead) {
      const Quad quad = read_quad(row, base, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t key = quad.key[i];
        const bool in_range = key >= low && key <= high && key != 0;
        if (in_range) {
          smallest = min(smallest, key);
          largest = max(largest, key);
        }
        const uint64_t amount = !in_range ? 0 : kByMass ? mass_of(value_of(key), maximum) : 1;
        digits.limbs.add_from_warp(key, in_range ? (key - low) >> shift : 0, amount);
      }
    }
    __syncthreads();
    for (int digit = threadIdx.x; digit < kDigits; digit += kFinishThreads) {
      digits.amount[digit] += digits.limbs.total(digit);
      digits.limbs.clear(digit);
    }
    __syncthreads();
  }
  low = ~Threads::largest(~smallest, scratch);
  high = Threads::largest(largest, scratch);
}

// The key in [low, high] at which the amount of larger keys is below a limit and that of itself and larger is not. The
// limit is `top_k` entries, or what `top_p` makes of the total mass of the range; `limit` returns it.
template <bool kByMass>
__device__ Edge find_edge(const RowReader& row, uint32_t low, uint32_t high, uint32_t top_k, float top_p,
                          double maximum, uint64_t& limit, Digits& digits, Threads::Scratch& scratch) {
  __shared__ int chosen;
  __shared__ uint64_t chosen_above;
  __shared__ uint64_t chosen_amount;
  Edge edge = {0, 0, 0};
  limit = top_k;
  for (bool first = true;; first = false) {
    const uint32_t start = low;
    const int bits = kWarp - __clz(static_cast<int>(high - low));
    const int shift = max(bits - kDigitBits, 0);
    count_digits<kByMass>(row, shift, maximum, low, high, digits, scratch);
    // Thread t looks at the t-th pair of digits from the top, so that the sum before it is of larger keys.
    static_assert(kDigitsPerThread == 2, "two digits a thread");
    const int upper = kDigits - 1 - 2 * threadIdx.x;
    const uint64_t in_upper = digits.amount[upper];
    const uint64_t in_lower = digits.amount[upper - 1];
    if (kByMass && first) limit = nucleus_limit(top_p, Threads::sum(in_upper + in_lower, scratch));
    const uint64_t above = edge.above + Threads::sum_before(in_upper + in_lower, scratch);
    if (above < limit && limit <= above + in_upper + in_lower) {
      const bool is_upper = limit <= above + in_upper;
      chosen = is_upper ? upper : upper - 1;
      chosen_above = is_upper ? above : above + in_upper;
      chosen_amount = is_upper ? in_upper : in_lower;
    }
    __syncthreads();
    edge = {0, chosen_above, chosen_amount};
    const uint32_t bin_low = start + (static_cast<uint32_t>(chosen) << shift);
    low = max(low, bin_low);
    high = min(high, bin_low + ((1u << shift) - 1));
    __syncthreads();
    if (low == high) {
      edge.key = low;
      return edge;
    }
  }
}

__device__ RowPlan plan_by_digits(const RowReader& row, const SamplingBatch& batch, uint32_t top_k, float top_p,
                                  const RowWorkspace& space, Shared& shared, Threads::Scratch& scratch) {
  const int chunks = ceil_divide(batch.width, batch.chunk);
  uint32_t largest = 0;
  for (int chunk = threadIdx.x; chunk < chunks; chunk += kFinishThreads) largest = max(largest, space.top[chunk]);
  const uint32_t top = Threads::largest(largest, scratch);
  uint64_t limit;
  uint32_t threshold = 0;
  if (top_k != 0) threshold = find_edge<false>(row, 1, top, top_k, 1.0f, 0.0, limit, shared.digits, scratch).key;
  if (top_p == 1.0f) return {threshold, threshold, 0, 0};
  const double maximum = value_of(top);
  const Edge edge = find_edge<true>(row, max(threshold, 1u), top, 0, top_p, maximum, limit, shared.digits, scratch);
  const uint64_t each = mass_of(value_of(edge.key), maximum);
  const uint64_t rank = (limit - edge.above + each - 1) / each;
  if (rank >= edge.ties / each) return {threshold, edge.key, 0, 0};
  const uint32_t id =
      locate_tie(row, batch.chunk, space.top, 0, chunks, edge.key, static_cast<uint32_t>(rank), shared.ties, scratch);
  return {threshold, edge.key, id, 0};
}

// Collects the entries of the slice whose keys are in the row's range, and weighs those above it.
__device__ void gather_range(const RowReader& row, const SamplingBatch& batch, double maximum, RowWorkspace& space,
                             Threads::Scratch& scratch) {
  const int chunks = ceil_divide(batch.width, batch.chunk);
  const int lane = threadIdx.x % kWarp;
  const uint32_t low = space.low;
  const uint32_t high = space.high;
  uint64_t above = 0;
  for (int first = blockIdx.x * kWarps + threadIdx.x / kWarp; first < chunks; first += gridDim.x * kWarps * kAhead) {
    for (int at = 0; at < batch.chunk; at += kWarpRead) {
      Quad quad[kAhead];
#pragma unroll
      for (int n = 0; n < kAhead; ++n) {
        // A chunk that lies below the range, or past the end, reads nothing.
        const int chunk = first + n * gridDim.x * kWarps;
        const bool reaches = chunk < chunks && space.top[chunk] >= low;
        quad[n] = read_quad(row, reaches ? chunk * batch.chunk + at : batch.width, lane);
      }
#pragma unroll
      for (int n = 0; n < kAhead; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t key = quad[n].key[i];
          if (key > high) above += mass_of(value_of(key), maximum);
          if (key < low || key > high) continue;
          const uint32_t place = atomicAdd(&space.found, 1u);
          if (place < kSortCapacity)
            space.candidates[place] = static_cast<uint64_t>(key) << 32 | (quad[n].first + i * quad[n].step);
        }
      }
    }
  }
  above = Threads::sum(above, scratch);
  if (threadIdx.x == 0 && above != 0) atomicAdd(&space.ahead, above);
}

// The edge among the `found` collected entries.
__device__ RowPlan plan_in_range(const RowWorkspace& space, int found, uint32_t top, uint64_t (&sorted)[kSortCapacity],
                                 Threads::Scratch& scratch) {
  const int size = power_of_two_from(found);
  for (int i = threadIdx.x; i < size; i += kFinishThreads) sorted[i] = i < found ? load_fresh(&space.candidates[i]) : 0;
  Threads::sort_descending(sorted, size);
  static_assert(kSortCapacity == 2 * kFinishThreads, "two entries a thread");
  const double maximum = value_of(top);
  uint64_t mass[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int at = 2 * threadIdx.x + i;
    mass[i] = at < found ? mass_of(value_of(static_cast<uint32_t>(sorted[at] >> 32)), maximum) : 0;
  }
  const uint64_t ahead = load_fresh(&space.ahead) + Threads::sum_before(mass[0] + mass[1], scratch);
  const int at = 2 * threadIdx.x;
  uint32_t inside = at < found && ahead < space.limit;
  inside += at + 1 < found && ahead + mass[0] < space.limit;
  const int last = static_cast<int>(Threads::sum(inside, scratch)) - 1;
  const uint32_t cut = static_cast<uint32_t>(sorted[last] >> 32);
  const bool split = last + 1 < found && static_cast<uint32_t>(sorted[last + 1] >> 32) == cut;
  return {0, cut, split ? static_cast<uint32_t>(sorted[last]) : 0, 0};
}

}  // namespace

// `slices`: blocks of a row of the plan kernel. This one has fewer: most rows are done.
SM70_KERNEL((kFinishThreads), sampling_finish, SamplingBatch batch, RowWorkspace* workspace, RowPlan* plans,
            int32_t slices) {
  __shared__ Shared shared;
  __shared__ Threads::Scratch scratch;
  const int row_index = blockIdx.y;
  RowWorkspace& space = workspace[row_index];
  const uint32_t task = space.task;
  if (task == kDone || (task != kEdgeInRange && blockIdx.x != 0)) return;
  const RowReader row = reader_of(batch, row_index, true);
  const int asked = batch.top_k == nullptr ? 0 : batch.top_k[row_index];
  const uint32_t top_k = asked > 0 && asked < batch.width ? asked : 0;
  const float top_p = batch.top_p == nullptr ? 1.0f : batch.top_p[row_index];
  const int chunks = ceil_divide(batch.width, batch.chunk);

  if (task == kLocateTie) {
    const int each = ceil_divide(chunks, slices);
    const int first = space.slice * each;
    const uint32_t id = locate_tie(row, batch.chunk, space.top, first, min(chunks, first + each), space.low, space.rank,
                                   shared.ties, scratch);
    if (threadIdx.x == 0) plans[row_index].first_tie = id;
    return;
  }
  bool by_digits = task == kByDigits;
  if (task == kEdgeInRange) {
    uint32_t largest = 0;
    for (int chunk = threadIdx.x; chunk < chunks; chunk += kFinishThreads) largest = max(largest, space.top[chunk]);
    const uint32_t top = Threads::largest(largest, scratch);
    gather_range(row, batch, value_of(top), space, scratch);
    if (!Threads::is_last(&space.arrivals[1], gridDim.x, scratch)) return;
    const uint32_t found = load_fresh(&space.found);
    by_digits = found > kSortCapacity;
    if (!by_digits) {
      const RowPlan plan = plan_in_range(space, found, top, shared.sorted, scratch);
      if (threadIdx.x == 0) plans[row_index] = plan;
    }
  }
  if (by_digits) {
    const RowPlan plan = plan_by_digits(row, batch, top_k, top_p, space, shared, scratch);
    if (threadIdx.x == 0) plans[row_index] = plan;
  }
}
