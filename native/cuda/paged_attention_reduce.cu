// Joins the partitions of split sequences: out = sum_p w_p o_p / sum_p w_p s_p with w_p = 2^(m_p - max m), partitions
// in a fixed order.
#include "paged_attention_work.cuh"

namespace {

constexpr int kThreads = 256;
constexpr int kMaxPartitions = 128;
constexpr int kAhead = 16;  // partitions that a thread has in flight
constexpr int kOwnStats = kMaxPartitions / kWarp;

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
  // Read before anything is known of the sequence: every partition that there can be has its place.
  const int64_t first_slot = (blockIdx.x * args.query_heads + blockIdx.y) * args.partitions;
  float2 stats[kOwnStats];
#pragma unroll
  for (int i = 0; i < kOwnStats; ++i) {
    const int p = threadIdx.x % kWarp + i * kWarp;
    stats[i] = p < args.partitions ? static_cast<const float2*>(args.partial_stats)[first_slot + p] : make_float2(0, 0);
  }
  paged_attention::Item item;
  int query = 0;
  if (!find_row(args, blockIdx.x, item, query) || item.partitions <= 1) return;

  // Lanes stand four elements wide over the head; groups of lanes take every groups-th partition.
  const int dim = static_cast<int>(args.head_dim);
  const int lanes = dim / 4;
  const int groups = kThreads / lanes;
  const int group = threadIdx.x / lanes;
  const int d = threadIdx.x % lanes * 4;
  const float* partial = static_cast<const float*>(args.partial_out) + first_slot * dim + d;
  const int end = group < groups ? item.partitions : 0;
  uint4 value[kAhead];
  const auto fetch = [&](int first) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int p = first + i * groups;
      value[i] = load_or_zero(reinterpret_cast<const uint4*>(partial + static_cast<int64_t>(p) * dim), p < end);
    }
  };
  fetch(group);

  if (threadIdx.x < kWarp) {
    float maximum = -infinity();
#pragma unroll
    for (int i = 0; i < kOwnStats; ++i)
      if (threadIdx.x + i * kWarp < item.partitions) maximum = fmaxf(maximum, stats[i].x);
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) maximum = fmaxf(maximum, __shfl_xor_sync(kFullMask, maximum, step));
    const float base = maximum == -infinity() ? 0.0f : maximum;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kOwnStats; ++i) {
      const int p = threadIdx.x + i * kWarp;
      if (p >= item.partitions) break;
      const float own_weight = stats[i].y == 0.0f ? 0.0f : exp2f(stats[i].x - base);
      weight[p] = own_weight;
      sum += own_weight * stats[i].y;
    }
    sum = warp_sum(sum);
    if (threadIdx.x == 0) total = sum;
  }
  __syncthreads();

  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  for (int first = group; first < end; first += groups * kAhead) {
    if (first != group) fetch(first);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int p = first + i * groups;
      const float own = p < end ? weight[p] : 0.0f;
      if (own == 0.0f) continue;  // a partition without weight was never written
      sum.x += own * __uint_as_float(value[i].x);
      sum.y += own * __uint_as_float(value[i].y);
      sum.z += own * __uint_as_float(value[i].z);
      sum.w += own * __uint_as_float(value[i].w);
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
