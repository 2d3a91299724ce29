// What the sampling kernels share: how a row is read a chunk a warp, its workspace, and the block-wide sums, searches
// and sorts. Everything that decides is an integer and every sum is of integers, so no result depends on the order in
// which blocks or threads run.
#ifndef SM70_CUDA_SAMPLING_DEVICE_CUH_
#define SM70_CUDA_SAMPLING_DEVICE_CUH_

#include "device.cuh"
#include "sampling_rule.cuh"
#include "sampling_workspace.cuh"

namespace sm70 {

// One row after temperature. A key of 0 stands for "no entry here": no value has it.
struct RowReader {
  const float* data;
  int width;
  float temperature;  // 1 for a greedy row
  bool vectors;       // the row starts on 16 bytes

  __device__ float value(float logit) const { return temperature == 1.0f ? logit : __fdiv_rn(logit, temperature); }
  __device__ uint32_t key_of(float logit) const { return ordered_key(value(logit)); }
  __device__ uint32_t key_at(int id) const { return id < width ? key_of(data[id]) : 0; }
};

// The row of a batch as its plan sees it: greedy rows and rows with bad parameters are not divided.
__device__ inline RowReader reader_of(const SamplingBatch& batch, int row, bool divided) {
  const float temperature = batch.temperature == nullptr || !divided ? 1.0f : batch.temperature[row];
  return {batch.logits + row * batch.stride, batch.width, temperature, batch.vectors != 0};
}

// Four entries of a lane and the id of the first; ids are `step` apart.
template <typename T>
struct Four {
  T at[4];
  int first;
  int step;

  __device__ int id(int i) const { return first + i * step; }
};
using Keys = Four<uint32_t>;
using Values = Four<float>;  // after temperature

// The kWarpRead entries from `base` on, read by one warp: `of` a logit, and past the end of the row `past`.
template <typename T, class Of, class Past>
__device__ inline Four<T> read_four(const RowReader& row, int base, int lane, Of&& of, Past&& past) {
  Four<T> four;
  if (row.vectors) {
    four.first = base + 4 * lane;
    four.step = 1;
    if (four.first + 3 < row.width) {
      const float4 logits = *reinterpret_cast<const float4*>(row.data + four.first);
      four.at[0] = of(logits.x);
      four.at[1] = of(logits.y);
      four.at[2] = of(logits.z);
      four.at[3] = of(logits.w);
      return four;
    }
  } else {
    four.first = base + lane;
    four.step = kWarp;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) four.at[i] = four.id(i) < row.width ? of(row.data[four.id(i)]) : past();
  return four;
}

__device__ inline Keys read_keys(const RowReader& row, int base, int lane) {
  return read_four<uint32_t>(row, base, lane, [&](float logit) { return row.key_of(logit); }, [] { return 0u; });
}

// Past the end: -inf.
__device__ inline Values read_values(const RowReader& row, int base, int lane) {
  return read_four<float>(row, base, lane, [&](float logit) { return row.value(logit); }, [] { return -infinity(); });
}

// Past the end: the row's last value.
__device__ inline Values read_values_again(const RowReader& row, int base, int lane) {
  const auto last = [&] { return row.value(row.data[row.width - 1]); };
  return read_four<float>(row, base, lane, [&](float logit) { return row.value(logit); }, last);
}

__device__ inline float4 load_four(const RowReader& row, int first) {
  return *reinterpret_cast<const float4*>(row.data + first);
}

__device__ inline Values values_of(const RowReader& row, float4 four, int first) {
  Values values = {{four.x, four.y, four.z, four.w}, first, 1};
  if (row.temperature == 1.0f) return values;
#pragma unroll
  for (int i = 0; i < 4; ++i) values.at[i] = row.value(values.at[i]);
  return values;
}

// Calls body(values) for the reads of one warp from `base` up to `end`, `step` apart; of an aligned row the next read
// is under way meanwhile.
template <class Body>
__device__ void each_read(const RowReader& row, int base, int end, int step, int lane, Body&& body) {
  if (row.vectors) {
    const int whole = min(end, row.width / kWarpRead * kWarpRead);
    float4 next = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (base < whole) next = load_four(row, base + 4 * lane);
    while (base < whole) {
      const float4 four = next;
      const int first = base + 4 * lane;
      base += step;
      if (base < whole) next = load_four(row, base + 4 * lane);
      body(values_of(row, four, first));
    }
  }
  for (; base < end; base += step) body(read_values(row, base, lane));
}

// Writes what `values` became back to `out`, the row's own place.
__device__ inline void write_values(const RowReader& row, float* out, const Values& values) {
  if (row.vectors && values.first + 3 < row.width) {
    *reinterpret_cast<float4*>(out + values.first) =
        make_float4(values.at[0], values.at[1], values.at[2], values.at[3]);
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (values.id(i) < row.width) out[values.id(i)] = values.at[i];
  }
}

__device__ inline uint32_t warp_max(uint32_t value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value = max(value, __shfl_xor_sync(kFullMask, value, step));
  return value;
}

template <typename T>
__device__ inline T warp_total(T value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(kFullMask, value, step);
  return value;
}

// Reads what another block wrote in this launch: past the L1, which does not see it.
template <typename T>
__device__ inline T load_fresh(const T* from) {
#ifdef SM70_EMULATED
  return *from;
#else
  return __ldcg(from);
#endif
}

// Shifts that give nothing when they are by 32 or more.
__device__ inline uint32_t left_or_none(uint32_t value, uint32_t by) {
#ifdef SM70_EMULATED
  return by < 32 ? value << by : 0;
#else
  uint32_t shifted;
  asm("shl.b32 %0, %1, %2;" : "=r"(shifted) : "r"(value), "r"(by));
  return shifted;
#endif
}

__device__ inline uint32_t right_or_none(uint32_t value, uint32_t by) {
#ifdef SM70_EMULATED
  return by < 32 ? value >> by : 0;
#else
  uint32_t shifted;
  asm("shr.u32 %0, %1, %2;" : "=r"(shifted) : "r"(value), "r"(by));
  return shifted;
#endif
}

// mass_of() of a value less than 63 octaves below the maximum, in halves of 32 bits, which cost half.
__device__ inline uint64_t mass_within(float value, double maximum) {
  uint64_t distance;
  octaves_below(value, maximum, distance);
  const uint32_t power = power_at(static_cast<uint32_t>(distance));
  const uint32_t octaves = static_cast<uint32_t>(distance >> 32);
  constexpr uint32_t kWhole = kMassBits - 31;  // up to as many octaves a power is shifted left, and nothing is rounded
  const uint32_t rounded = (right_or_none(power, octaves - (kWhole + 1)) + 1) >> 1;
  const uint32_t low = left_or_none(power, kWhole - octaves) | rounded;
  return static_cast<uint64_t>(right_or_none(power, 32 - kWhole + octaves)) << 32 | low;
}

// The chunks of slice `index` of `slices`.
struct Slice {
  int first, end;
  __device__ Slice(const SamplingBatch& batch, int index, int slices) {
    const int chunks = ceil_divide(batch.width, batch.chunk);
    const int each = ceil_divide(chunks, slices);
    first = min(index * each, chunks);
    end = min(chunks, first + each);
  }
};

// Block-wide operations; all threads of the block call them together. `scratch` is shared and used again at once.
template <int kThreads>
struct Block {
  static constexpr int kWarps = kThreads / kWarp;
  using Scratch = unsigned long long[kWarps];

  // Sum over the block, to every thread.
  template <typename T>
  static __device__ T sum(T value, Scratch& scratch) {
    value = warp_total(value);
    __syncthreads();
    if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = value;
    __syncthreads();
    T total = 0;
    for (int warp = 0; warp < kWarps; ++warp) total += static_cast<T>(scratch[warp]);
    return total;
  }

  static __device__ uint32_t largest(uint32_t value, Scratch& scratch) {
    value = warp_max(value);
    __syncthreads();
    if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = value;
    __syncthreads();
    uint32_t top = 0;
    for (int warp = 0; warp < kWarps; ++warp) top = max(top, static_cast<uint32_t>(scratch[warp]));
    return top;
  }

  // Sum over the threads before this one.
  static __device__ uint64_t sum_before(uint64_t value, Scratch& scratch) {
    const int lane = threadIdx.x % kWarp;
    uint64_t running = value;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const uint64_t other = __shfl_up_sync(kFullMask, running, step);
      if (lane >= step) running += other;
    }
    __syncthreads();
    if (lane == kWarp - 1) scratch[threadIdx.x / kWarp] = running;
    __syncthreads();
    uint64_t before = running - value;
    for (int warp = 0; warp < static_cast<int>(threadIdx.x) / kWarp; ++warp) before += scratch[warp];
    return before;
  }

  // Whether this block is the last of `blocks` to come here; it then sees what the others wrote.
  static __device__ bool is_last(uint32_t* arrivals, uint32_t blocks, Scratch& scratch) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) scratch[0] = atomicAdd(arrivals, 1u);
    __syncthreads();
    const bool last = scratch[0] == blocks - 1;
    if (last) __threadfence();
    return last;
  }

  // Sorts `size` (a power of two) values, largest first.
  static __device__ void sort_descending(uint64_t* values, int size) {
    for (int run = 2; run <= size; run *= 2) {
      for (int reach = run / 2; reach > 0; reach /= 2) {
        __syncthreads();
        for (int i = threadIdx.x; i < size / 2; i += kThreads) {
          const int low = 2 * i - (i & (reach - 1));
          const int high = low + reach;
          const uint64_t a = values[low];
          const uint64_t b = values[high];
          if ((a < b) == ((low & run) == 0)) {
            values[low] = b;
            values[high] = a;
          }
        }
      }
    }
    __syncthreads();
  }
};

// Counters of mass in shared memory: three parts of 14 bits in 32-bit words, whose atomics are native on SM70 where
// those of 64 bits are not. Holds the mass of 2**18 entries.
template <int kCount>
struct Limbs {
  static constexpr int kBits = 14;
  static constexpr uint32_t kLow = (1u << kBits) - 1;
  uint32_t part[3][kCount];

  __device__ void clear(int at) { part[0][at] = part[1][at] = part[2][at] = 0; }
  __device__ uint64_t total(int at) const {
    return part[0][at] + (static_cast<uint64_t>(part[1][at]) << kBits) +
           (static_cast<uint64_t>(part[2][at]) << (2 * kBits));
  }
  // All lanes of a warp add; `at` and `mass` follow from `key`. Ties put a whole warp on one counter: then one lane
  // adds for all.
  __device__ void add_from_warp(uint32_t key, int at, uint64_t mass) {
    const bool same = __all_sync(kFullMask, key == __shfl_sync(kFullMask, key, 0));
    if (mass == 0 || (same && threadIdx.x % kWarp != 0)) return;
    const uint32_t times = same ? kWarp : 1;
    atomicAdd(&part[0][at], times * (static_cast<uint32_t>(mass) & kLow));
    atomicAdd(&part[1][at], times * (static_cast<uint32_t>(mass >> kBits) & kLow));
    atomicAdd(&part[2][at], times * static_cast<uint32_t>(mass >> (2 * kBits)));
  }
};

__device__ inline int power_of_two_from(int count) {
  int size = 1;
  while (size < count) size *= 2;
  return size;
}

}  // namespace sm70

#endif  // SM70_CUDA_SAMPLING_DEVICE_CUH_
