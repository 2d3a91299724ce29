// Joins the partitions of split sequences: out = sum_p w_p o_p / sum_p w_p s_p with w_p = 2^(m_p - max m), partitions
// in a fixed order.
#include "paged_attention_work.cuh"

namespace {

constexpr int kThreads = 256;
constexpr int kMaxPartitions = 128;
constexpr int kAhead = 8;  // partitions that a thread has in flight

// Finds the sequence and the query that are row `row` among the rows of split sequences.
__device__ bool find_row(const PagedAttentionArgs& args, int row, paged_attention::Item& item, int& query) {
  const int lane = threadIdx.x % kWarp;
  int before = 0;
  for (int64_t base = 0; base < args.batch; base += kWarp) {
    const paged_attention::Lengths own(args, base + lane);
    const int rows = own.split() ? own.queries : 0;
    const int end = paged_attention::inclusive_scan(rows);
    const int total = __shfl_sync(kFullMask, end, kWarp - 1);
    if (row - before >= total) {
      before += total;
      continue;
    }
    const int owner = __ffs(static_cast<int>(__ballot_sync(kFullMask, row - before < end))) - 1;
    query = row - before - __shfl_sync(kFullMask, end - rows, owner);
    item.first_query = __shfl_sync(kFullMask, own.first_query, owner);
    const int length = __shfl_sync(kFullMask, own.length, owner);
    item.partitions = paged_attention::ceil_div(length, paged_attention::chunk_of(args, length));
    return true;
  }
  return false;
}

}  // namespace

// Grid: rows of split sequences, query heads. Sequences of one partition were finished by the first kernel.
SM70_KERNEL((kThreads, 2), paged_attention_reduce, PagedAttentionArgs args) {
  __shared__ float weight[kMaxPartitions];
  __shared__ float total;
  __shared__ float4 sums[kThreads];
  paged_attention::Item item;
  int query = 0;
  if (!find_row(args, blockIdx.x, item, query) || item.partitions <= 1) return;

  const int64_t first_slot = (blockIdx.x * args.query_heads + blockIdx.y) * args.partitions;
  if (threadIdx.x < kWarp) {
    const float2* stats = static_cast<const float2*>(args.partial_stats) + first_slot;
    float maximum = -infinity();
    for (int p = threadIdx.x; p < item.partitions; p += kWarp) maximum = fmaxf(maximum, stats[p].x);
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) maximum = fmaxf(maximum, __shfl_xor_sync(kFullMask, maximum, step));
    const float base = maximum == -infinity() ? 0.0f : maximum;
    float sum = 0.0f;
    for (int p = threadIdx.x; p < item.partitions; p += kWarp) {
      const float2 own = stats[p];
      const float own_weight = own.y == 0.0f ? 0.0f : exp2f(own.x - base);
      weight[p] = own_weight;
      sum += own_weight * own.y;
    }
    sum = warp_sum(sum);
    if (threadIdx.x == 0) total = sum;
  }
  __syncthreads();

  // Lanes stand four elements wide over the head; groups of lanes take every groups-th partition.
  const int dim = static_cast<int>(args.head_dim);
  const int lanes = dim / 4;
  const int groups = kThreads / lanes;
  const int group = threadIdx.x / lanes;
  const int d = threadIdx.x % lanes * 4;
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (group < groups) {
    const float* partial = static_cast<const float*>(args.partial_out) + first_slot * dim + d;
    for (int first = group; first < item.partitions; first += groups * kAhead) {
      float own[kAhead];
      float4 value[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int p = first + i * groups;
        own[i] = p < item.partitions ? weight[p] : 0.0f;
        // A partition without weight was never written.
        const float* from = partial + static_cast<int64_t>(p) * dim;
        const uint4 bits = load_or_zero(reinterpret_cast<const uint4*>(from), own[i] != 0.0f);
        value[i] = make_float4(__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                               __uint_as_float(bits.w));
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        sum.x += own[i] * value[i].x;
        sum.y += own[i] * value[i].y;
        sum.z += own[i] * value[i].z;
        sum.w += own[i] * value[i].w;
      }
    }
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (group != 0) return;
  for (int other = 1; other < groups; ++other) {
    const float4 value = sums[other * lanes + threadIdx.x];
    sum.x += value.x;
    sum.y += value.y;
    sum.z += value.z;
    sum.w += value.w;
  }
  paged_attention::write_row(args, item.first_query + query, blockIdx.y, d, sum, total);
}
