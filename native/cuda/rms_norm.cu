// Root-mean-square norm of FP16 rows: y = x * rsqrt(mean(x^2) + eps) * weight, FP32 inside, one rounding at the end.
#include "device.cuh"

namespace {

constexpr int kThreads = 256;
constexpr int kVector = 8;  // halves in a 16-byte load

__device__ void unpack(const uint4& packed, float (&value)[kVector]) {
  const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    const float2 pair = __half22float2(half2_from_bits(words[i]));
    value[2 * i] = pair.x;
    value[2 * i + 1] = pair.y;
  }
}

}  // namespace

// One block a row. `width` is a multiple of 8, rows start on 16-byte boundaries, strides count halves.
SM70_KERNEL((kThreads), rms_norm_f16, const __half* x, int64_t x_stride, const float* weight, __half* out,
            int64_t out_stride, int width, float eps) {
  __shared__ float partial[kThreads / kWarp];
  const uint4* row = reinterpret_cast<const uint4*>(x + blockIdx.x * x_stride);
  uint4* out_row = reinterpret_cast<uint4*>(out + blockIdx.x * out_stride);
  const int vectors = width / kVector;

  float sum = 0.0f;
  for (int at = threadIdx.x; at < vectors; at += kThreads) {
    float value[kVector];
    unpack(row[at], value);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum += value[i] * value[i];
  }
  const float scale = rsqrtf(block_sum<kThreads>(sum, partial) / static_cast<float>(width) + eps);

  for (int at = threadIdx.x; at < vectors; at += kThreads) {
    float value[kVector];
    unpack(row[at], value);  // second read: from L1
    const float4 low = reinterpret_cast<const float4*>(weight)[2 * at];
    const float4 high = reinterpret_cast<const float4*>(weight)[2 * at + 1];
    uint4 result;
    result.x = half2_bits(__floats2half2_rn(value[0] * scale * low.x, value[1] * scale * low.y));
    result.y = half2_bits(__floats2half2_rn(value[2] * scale * low.z, value[3] * scale * low.w));
    result.z = half2_bits(__floats2half2_rn(value[4] * scale * high.x, value[5] * scale * high.y));
    result.w = half2_bits(__floats2half2_rn(value[6] * scale * high.z, value[7] * scale * high.w));
    out_row[at] = result;
  }
}

// The same for any width and alignment, one element at a time.
SM70_KERNEL((kThreads), rms_norm_any_f16, const __half* x, int64_t x_stride, const float* weight, __half* out,
            int64_t out_stride, int width, float eps) {
  __shared__ float partial[kThreads / kWarp];
  const __half* row = x + blockIdx.x * x_stride;
  __half* out_row = out + blockIdx.x * out_stride;
  float sum = 0.0f;
  for (int at = threadIdx.x; at < width; at += kThreads) {
    const float value = __half2float(row[at]);
    sum += value * value;
  }
  const float scale = rsqrtf(block_sum<kThreads>(sum, partial) / static_cast<float>(width) + eps);
  for (int at = threadIdx.x; at < width; at += kThreads)
    out_row[at] = __float2half_rn(__half2float(row[at]) * scale * weight[at]);
}
