// What every SM70 kernel of this project shares: fixed-width names (NVRTC has no <cstdint>), warp reductions in a fixed
// order, and the m8n8k4 tensor-core product.
#ifndef SM70_CUDA_DEVICE_CUH_
#define SM70_CUDA_DEVICE_CUH_

#include <cuda_fp16.h>

using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;

#define SM70_KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)

constexpr unsigned kFullMask = 0xffffffffu;
constexpr int kWarp = 32;

// Sum over the warp; every lane gets the same bits because the exchange is symmetric.
__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(kFullMask, value, step);
  return value;
}

#endif  // SM70_CUDA_DEVICE_CUH_
