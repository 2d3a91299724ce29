// FP32 logits of chosen vocabulary rows: out[m, c] = x[m] . weight[ids[m, c]], FP16 in, FP32 products and sums.
#include "device.cuh"

namespace {
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
}  // namespace

// One warp a candidate. k is a multiple of 8; rows lie on 16 bytes. Grid: blocks of candidates, rows.
SM70_KERNEL((kThreads), candidate_logits_f16, const __half* x, int64_t x_stride, const __half* weight,
            int64_t weight_stride, int64_t rows, const int64_t* ids, int64_t ids_stride, int candidates, float* out,
            int64_t out_stride, int k, int* fault) {
  const int candidate = blockIdx.x * kWarps + threadIdx.x / kWarp;
  if (candidate >= candidates) return;
  const int lane = threadIdx.x % kWarp;
  const int64_t id = ids[blockIdx.y * ids_stride + candidate];
  float* to = out + blockIdx.y * out_stride + candidate;
  if (id < 0 || id >= rows) {
    if (lane == 0) {
      report_fault(fault, kFaultId, blockIdx.y, candidate, id);
      *to = -infinity();
    }
    return;
  }
  const uint4* a = reinterpret_cast<const uint4*>(x + blockIdx.y * x_stride);
  const uint4* b = reinterpret_cast<const uint4*>(weight + id * weight_stride);
  float sum = 0.0f;
  for (int at = lane; at < k / 8; at += kWarp) {
    const uint4 left = a[at], right = __ldg(b + at);
    const uint32_t lefts[4] = {left.x, left.y, left.z, left.w};
    const uint32_t rights[4] = {right.x, right.y, right.z, right.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 u = __half22float2(half2_from_bits(lefts[i])), v = __half22float2(half2_from_bits(rights[i]));
      sum += u.x * v.x;
      sum += u.y * v.y;
    }
  }
  sum = warp_sum(sum);
  if (lane == 0) *to = sum;
}
