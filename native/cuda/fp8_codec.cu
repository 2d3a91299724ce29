// FP8 codes of whole tensors: encode(x / scale) and decode(code) * scale.
#include "device.cuh"
#include "fp8.cuh"

namespace {
constexpr int kThreads = 256;
}

// x: FP16 or (wide) FP32 [count]; codes: [count]. format: 1 E4M3, 2 E5M2.
SM70_KERNEL((kThreads), fp8_encode, const void* x, int wide, unsigned char* codes, int64_t count, float scale,
            int format) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= count) return;
  const float value = wide != 0 ? static_cast<const float*>(x)[at] : __half2float(static_cast<const __half*>(x)[at]);
  const float scaled = __fdiv_rn(value, scale);
  codes[at] = format == 1 ? E4M3::encode(scaled) : E5M2::encode(scaled);
}

// The product with the scale is in FP32 and rounded once, to FP16 or (wide) not at all.
SM70_KERNEL((kThreads), fp8_decode, const unsigned char* codes, void* out, int wide, int64_t count, float scale,
            int format) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= count) return;
  const uint32_t code = codes[at];
  const uint32_t pair = (format == 1 ? E4M3::decode4(code) : E5M2::decode4(code)).x;
  const float value = __fmul_rn(__low2float(half2_from_bits(pair)), scale);
  if (wide != 0)
    static_cast<float*>(out)[at] = value;
  else
    static_cast<__half*>(out)[at] = __float2half_rn(value);
}
