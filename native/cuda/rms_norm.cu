// Root-mean-square norm of FP16 rows: y = x * rsqrt(mean(x^2) + eps) * weight, FP32 inside, one rounding at the end.
#include "device.cuh"

namespace {

constexpr int kThreads = 256;
constexpr int kVector = 8;  // halves in a 16-byte load

// Sum over the block in a fixed tree: lanes by halving distance, then the warps in order.
__device__ float block_sum(float value) {
  __shared__ float partial[kThreads / kWarp];
  value = warp_sum(value);
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = value;
  __syncthreads();
  float total = 0.0f;
#pragma unroll
  for (int warp = 0; warp < kThreads / kWarp; ++warp) total += partial[warp];
  return total;
}

}  // namespace

// One block a row. `width` is a multiple of 8, rows start on 16-byte boundaries, strides count halves.
SM70_KERNEL(kThreads)
rms_norm_f16(const __half* x, int64_t x_stride, const float* weight, __half* out, int64_t out_stride, int width,
             float eps) {
  const uint4* row = reinterpret_cast<const uint4*>(x + blockIdx.x * x_stride);
  uint4* out_row = reinterpret_cast<uint4*>(out + blockIdx.x * out_stride);
  const int vectors = width / kVector;

  float sum = 0.0f;
  for (int at = threadIdx.x; at < vectors; at += kThreads) {
    const uint4 packed = row[at];
    const __half2* pair = reinterpret_cast<const __half2*>(&packed);
#pragma unroll
    for (int i = 0; i < kVector / 2; ++i) {
      const float2 value = __half22float2(pair[i]);
      sum += value.x * value.x;
      sum += value.y * value.y;
    }
  }
  const float scale = rsqrtf(block_sum(sum) / static_cast<float>(width) + eps);

  for (int at = threadIdx.x; at < vectors; at += kThreads) {
    const uint4 packed = row[at];  // second read: from L1/L2
    const __half2* pair = reinterpret_cast<const __half2*>(&packed);
    const float4* scales = reinterpret_cast<const float4*>(weight) + 2 * at;
    const float4 low = scales[0];
    const float4 high = scales[1];
    const float factor[kVector] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    uint4 result;
    __half2* result_pair = reinterpret_cast<__half2*>(&result);
#pragma unroll
    for (int i = 0; i < kVector / 2; ++i) {
      const float2 value = __half22float2(pair[i]);
      result_pair[i] = __floats2half2_rn(value.x * scale * factor[2 * i], value.y * scale * factor[2 * i + 1]);
    }
    out_row[at] = result;
  }
}
