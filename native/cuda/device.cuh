// What every SM70 kernel of this project shares: fixed-width names (NVRTC has no <cstdint>), warp reductions in a fixed
// order, and the m8n8k4 tensor-core product. The same files compile for a CPU under SM70_EMULATED (see emulation/).
#ifndef SM70_CUDA_DEVICE_CUH_
#define SM70_CUDA_DEVICE_CUH_

#ifdef SM70_EMULATED
#include "emulation/cuda_emulation.h"
#include "emulation/emulation.h"
// bounds: (threads) or (threads, blocks an SM); the rest are the kernel's parameters.
#define SM70_KERNEL(bounds, name, ...) \
  extern "C" void name(__VA_ARGS__);   \
  SM70_EMULATE(name);                  \
  extern "C" void name(__VA_ARGS__)
#define SM70_DYNAMIC_SHARED(name) unsigned char* const name = sm70emu::g_dynamic_shared
#else
#include <cuda_fp16.h>
#include <mma.h>

using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;

#define SM70_KERNEL(bounds, name, ...) extern "C" __global__ void __launch_bounds__ bounds name(__VA_ARGS__)
#define SM70_DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]
#endif

#include "faults.h"

constexpr unsigned kFullMask = 0xffffffffu;
constexpr int kWarp = 32;

// Records the first value that cannot be (see faults.h).
__device__ inline void report_fault(int* fault, Fault kind, int64_t where, int64_t index, int64_t value) {
  if (atomicCAS(fault, kFaultNone, kind) != kFaultNone) return;
  fault[1] = static_cast<int>(where);
  fault[2] = static_cast<int>(index);
  fault[3] = static_cast<int>(value);
}

__device__ inline float infinity() { return __int_as_float(0x7f800000); }

// 2^x for weights that are rounded to halves: what lies below the least normal float becomes zero.
__device__ inline float exp2_or_zero(float x) {
#ifdef SM70_EMULATED
  return exp2f(x);
#else
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#endif
}

// Sum over the warp; every lane gets the same bits because the exchange is symmetric.
__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(kFullMask, value, step);
  return value;
}

// Sum over a block of kThreads in a fixed tree: lanes by halving distance, then the warps in order. Ends with the
// partial sums still readable, so a second call needs another `partial`.
template <int kThreads>
__device__ inline float block_sum(float value, float (&partial)[kThreads / kWarp]) {
  value = warp_sum(value);
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = value;
  __syncthreads();
  float total = 0.0f;
#pragma unroll
  for (int warp = 0; warp < kThreads / kWarp; ++warp) total += partial[warp];
  return total;
}

// Sixteen bytes of memory that nothing writes meanwhile, or zeros: a predicated load, no branch.
__device__ inline uint4 load_or_zero(const uint4* from, bool wanted) {
  uint4 value = make_uint4(0, 0, 0, 0);
#ifdef SM70_EMULATED
  if (wanted) value = *from;
#else
  asm volatile("{ .reg .pred wanted; setp.ne.u32 wanted, %5, 0; @wanted ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4]; }"
               : "+r"(value.x), "+r"(value.y), "+r"(value.z), "+r"(value.w)
               : "l"(from), "r"(static_cast<uint32_t>(wanted)));
#endif
  return value;
}

__device__ inline uint32_t half2_bits(__half2 value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

__device__ inline __half2 half2_from_bits(uint32_t bits) {
  __half2 value;
  memcpy(&value, &bits, sizeof(bits));
  return value;
}

// One warp instruction, four independent 8 x 8 x 4 products: quad pair p = (lane >> 2) & 3 multiplies its own A and B.
// A lane's r = (lane & 3) + 4 * (lane >> 4) is its row of A (row-major, k = 0..3 in a0, a1) and its column of B
// (k = 0..3 in b0, b1). Element i of its accumulator is row (lane & 1) + (i & 2) + 4 * (lane >> 4),
// column (i & 4) + (lane & 2) + (i & 1).
__device__ inline void mma_m8n8k4(float (&c)[8], uint32_t a0, uint32_t a1, uint32_t b0, uint32_t b1) {
#ifdef SM70_EMULATED
  const uint32_t mine[4] = {a0, a1, b0, b1};
  const unsigned char* slots = sm70emu::exchange("mma_m8n8k4", mine, sizeof(mine));
  const int lane = sm70emu::lane_id();
  const auto element = [&](int r, int operand, int k) {
    const int source = 4 * ((lane >> 2) & 3) + (r & 3) + 16 * (r >> 2);
    __half value;
    memcpy(&value, slots + source * sm70emu::kSlotBytes + operand * 8 + k * 2, 2);
    return __half2float(value);
  };
  for (int i = 0; i < 8; ++i) {
    const int row = (lane & 1) + (i & 2) + 4 * (lane >> 4);
    const int column = (i & 4) + (lane & 2) + (i & 1);
    for (int k = 0; k < 4; ++k) c[i] += element(row, 0, k) * element(column, 1, k);
  }
#else
  asm volatile(
      "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9}, {%10, %11}, {%0, %1, %2, %3, %4, %5, %6, %7};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7])
      : "r"(a0), "r"(a1), "r"(b0), "r"(b1));
#endif
}

#endif  // SM70_CUDA_DEVICE_CUH_
