// The part of CUDA C++ that this project's kernels use, on a CPU: compile a .cu file against this header and its
// kernels run with fibers for threads. It shows the logic of a kernel (indices, masks, barriers, reductions) where
// there is no GPU. It says nothing about speed, and its floating-point bits are not a GPU's.
//
// What it checks that a GPU does not: every lane of a warp reaches the same warp-wide operation, every thread the same
// block barrier, shared memory is never read before it is written (it starts as NaN), and, because the order in which
// threads run between barriers is an input (set_order), results that hang on a missing barrier change with the order.
#ifndef SM70_EMULATION_CUDA_EMULATION_H_
#define SM70_EMULATION_CUDA_EMULATION_H_

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct uint3 {
  unsigned x, y, z;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

namespace sm70emu {

struct Thread {
  uint3 index;
};

extern Thread* g_thread;  // the running one
extern uint3 g_block;
extern uint3 g_block_dim;
extern uint3 g_grid_dim;
extern unsigned char* g_dynamic_shared;

void block_barrier();
bool block_any(bool predicate);  // a barrier that tells every thread whether one of them said so

// Publishes `size` bytes of this lane and waits until every lane of the warp has published; then returns the slots of
// the whole warp, 64 bytes a lane, valid until this lane's next exchange. `what` names the operation: lanes that meet
// in different operations are an error.
constexpr int kSlotBytes = 64;
const unsigned char* exchange(const char* what, const void* value, int size);
int lane_id();
int warp_lanes();

template <typename T>
T shuffle(const char* what, T value, int source) {
  static_assert(sizeof(T) <= kSlotBytes);
  const unsigned char* slots = exchange(what, &value, sizeof(T));
  T result;
  std::memcpy(&result, slots + source * kSlotBytes, sizeof(T));
  return result;
}

}  // namespace sm70emu

#define SM70_EMULATED 1
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __restrict__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __constant__ static const
// One block runs at a time, so a block's shared memory is a static of its own linker section, which the launcher fills
// with NaN before each block.
#define __shared__ static __attribute__((section("sm70_shared")))

#define threadIdx (sm70emu::g_thread->index)
#define blockIdx (sm70emu::g_block)
#define blockDim (sm70emu::g_block_dim)
#define gridDim (sm70emu::g_grid_dim)

inline void __syncthreads() { sm70emu::block_barrier(); }
inline int __syncthreads_or(int predicate) { return sm70emu::block_any(predicate != 0); }
inline void __syncwarp(unsigned = 0xffffffffu) { sm70emu::exchange("__syncwarp", nullptr, 0); }
template <typename T>
T __shfl_sync(unsigned, T value, int source, int width = 32) {
  const int base = sm70emu::lane_id() / width * width;
  return sm70emu::shuffle("__shfl_sync", value, base + source % width);
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return sm70emu::shuffle("__shfl_xor_sync", value, sm70emu::lane_id() ^ mask);
}
template <typename T>
T __shfl_down_sync(unsigned, T value, int delta, int width = 32) {
  const int lane = sm70emu::lane_id();
  return sm70emu::shuffle("__shfl_down_sync", value, lane % width + delta < width ? lane + delta : lane);
}
template <typename T>
T __shfl_up_sync(unsigned, T value, int delta, int width = 32) {
  const int lane = sm70emu::lane_id();
  return sm70emu::shuffle("__shfl_up_sync", value, lane % width >= delta ? lane - delta : lane);
}
inline unsigned __ballot_sync(unsigned, bool predicate) {
  const int value = predicate ? 1 : 0;
  const unsigned char* slots = sm70emu::exchange("__ballot_sync", &value, sizeof(value));
  unsigned bits = 0;
  for (int lane = 0; lane < sm70emu::warp_lanes(); ++lane) bits |= unsigned(slots[lane * sm70emu::kSlotBytes]) << lane;
  return bits;
}
inline bool __any_sync(unsigned mask, bool predicate) { return __ballot_sync(mask, predicate) != 0; }
inline bool __all_sync(unsigned mask, bool predicate) { return __ballot_sync(mask, !predicate) == 0; }

inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline int __clz(int value) { return value == 0 ? 32 : __builtin_clz(static_cast<unsigned>(value)); }
inline int __ffs(int value) { return __builtin_ffs(value); }
inline float __int_as_float(int bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline int __float_as_int(float value) {
  int bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
inline unsigned __float_as_uint(float value) { return static_cast<unsigned>(__float_as_int(value)); }
inline float __uint_as_float(unsigned bits) { return __int_as_float(static_cast<int>(bits)); }
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
// Rounded down. A product of two floats is exact in a double; so is the sum, unless the operands are 2^29 apart.
inline float __fmaf_rd(float a, float b, float c) {
  const double exact = static_cast<double>(a) * b + c;
  const float nearest = static_cast<float>(exact);
  return nearest > exact ? std::nextafter(nearest, -INFINITY) : nearest;
}
inline float __fadd_rd(float a, float b) { return __fmaf_rd(a, 1.0f, b); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
// Bytes of y:x (bytes 7 to 0) picked by the low three bits of each of the selector's four hexadecimal digits.
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector) {
  const uint64_t bytes = static_cast<uint64_t>(y) << 32 | x;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) out |= static_cast<uint32_t>(bytes >> (8 * (selector >> (4 * i) & 7)) & 0xff) << (8 * i);
  return out;
}
template <typename T>
T __ldg(const T* pointer) {
  return *pointer;
}
inline int atomicCAS(int* address, int compare, int value) {
  const int old = *address;
  if (old == compare) *address = value;
  return old;
}
template <typename T>
T atomicAdd(T* address, T value) {
  const T old = *address;
  *address = old + value;
  return old;
}
template <typename T>
T atomicMax(T* address, T value) {
  const T old = *address;
  *address = old < value ? value : old;
  return old;
}
inline void __threadfence() {}
using std::max;
using std::min;

struct __half {
  uint16_t bits;
};
struct alignas(4) __half2 {
  __half x, y;
};
inline float __half2float(__half h) { return _cvtsh_ss(h.bits); }
inline __half __float2half_rn(float f) { return {static_cast<uint16_t>(_cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT))}; }
inline __half __float2half(float f) { return __float2half_rn(f); }
inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
inline unsigned short __half_as_ushort(__half h) { return h.bits; }
inline __half2 __halves2half2(__half a, __half b) { return {a, b}; }
inline __half2 __half2half2(__half a) { return {a, a}; }
inline __half __low2half(__half2 a) { return a.x; }
inline __half __high2half(__half2 a) { return a.y; }
inline float __low2float(__half2 a) { return __half2float(a.x); }
inline float __high2float(__half2 a) { return __half2float(a.y); }
inline float2 __half22float2(__half2 a) { return {__half2float(a.x), __half2float(a.y)}; }
inline __half2 __floats2half2_rn(float a, float b) { return {__float2half_rn(a), __float2half_rn(b)}; }
inline __half2 __float2half2_rn(float a) { return __half2half2(__float2half_rn(a)); }
// A product of two halves is exact in a float, and so is the sum's operand: one rounding, as on the device.
inline __half __hmul(__half a, __half b) { return __float2half_rn(__half2float(a) * __half2float(b)); }
inline __half __hadd(__half a, __half b) {
  return __float2half_rn(static_cast<float>(double(__half2float(a)) + __half2float(b)));
}
inline __half __hsub(__half a, __half b) {
  return __float2half_rn(static_cast<float>(double(__half2float(a)) - __half2float(b)));
}
inline __half __hfma(__half a, __half b, __half c) {
  return __float2half_rn(std::fma(__half2float(a), __half2float(b), __half2float(c)));
}
inline __half2 __hmul2(__half2 a, __half2 b) { return {__hmul(a.x, b.x), __hmul(a.y, b.y)}; }
inline __half2 __hadd2(__half2 a, __half2 b) { return {__hadd(a.x, b.x), __hadd(a.y, b.y)}; }
inline __half2 __hsub2(__half2 a, __half2 b) { return {__hsub(a.x, b.x), __hsub(a.y, b.y)}; }
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }

// Warp matrix fragments. A lane holds eight elements of a 16 x 16 tile, row-major by lane; the kernels must not rely on
// that any more than on a GPU's own, unspecified, order.
namespace nvcuda::wmma {
struct row_major {};
struct col_major {};
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
enum layout_t { mem_row_major, mem_col_major };

template <typename Use, int M, int N, int K, typename T, typename Layout = void>
struct fragment {
  static_assert(M == 16 && N == 16 && K == 16, "only 16 x 16 x 16 is emulated");
  static constexpr int num_elements = 8;
  T x[8];
};

template <typename Fragment, typename T>
void load_elements(Fragment& f, const T* from, unsigned ld, bool column_major) {
  const int lane = sm70emu::lane_id();
  for (int i = 0; i < 8; ++i) {
    const int row = (lane * 8 + i) / 16, column = (lane * 8 + i) % 16;
    f.x[i] = column_major ? from[column * ld + row] : from[row * ld + column];
  }
}
template <typename Use, typename T>
void load_matrix_sync(fragment<Use, 16, 16, 16, T, row_major>& f, const T* from, unsigned ld) {
  __syncwarp();
  load_elements(f, from, ld, false);
}
template <typename Use, typename T>
void load_matrix_sync(fragment<Use, 16, 16, 16, T, col_major>& f, const T* from, unsigned ld) {
  __syncwarp();
  load_elements(f, from, ld, true);
}
template <typename T>
void load_matrix_sync(fragment<accumulator, 16, 16, 16, T>& f, const T* from, unsigned ld, layout_t layout) {
  __syncwarp();
  load_elements(f, from, ld, layout == mem_col_major);
}
template <typename T>
void store_matrix_sync(T* to, const fragment<accumulator, 16, 16, 16, T>& f, unsigned ld, layout_t layout) {
  const int lane = sm70emu::lane_id();
  for (int i = 0; i < 8; ++i) {
    const int row = (lane * 8 + i) / 16, column = (lane * 8 + i) % 16;
    (layout == mem_col_major ? to[column * ld + row] : to[row * ld + column]) = f.x[i];
  }
  __syncwarp();
}
template <typename Fragment, typename T>
void fill_fragment(Fragment& f, T value) {
  for (auto& element : f.x) element = value;
}
template <typename LayoutA, typename LayoutB>
void mma_sync(fragment<accumulator, 16, 16, 16, float>& d, const fragment<matrix_a, 16, 16, 16, __half, LayoutA>& a,
              const fragment<matrix_b, 16, 16, 16, __half, LayoutB>& b,
              const fragment<accumulator, 16, 16, 16, float>& c) {
  struct Pair {
    __half a[8], b[8];
  } mine;
  std::memcpy(mine.a, a.x, sizeof(mine.a));
  std::memcpy(mine.b, b.x, sizeof(mine.b));
  const unsigned char* slots = sm70emu::exchange("wmma::mma_sync", &mine, sizeof(mine));
  const auto element = [slots](int which, int row, int column) {
    const int at = row * 16 + column;
    __half h;
    std::memcpy(&h, slots + at / 8 * sm70emu::kSlotBytes + which * 16 + at % 8 * 2, 2);
    return __half2float(h);
  };
  const int lane = sm70emu::lane_id();
  for (int i = 0; i < 8; ++i) {
    const int row = (lane * 8 + i) / 16, column = (lane * 8 + i) % 16;
    float sum = c.x[i];
    for (int k = 0; k < 16; ++k) sum += element(0, row, k) * element(1, k, column);
    d.x[i] = sum;
  }
}
}  // namespace nvcuda::wmma

#endif  // SM70_EMULATION_CUDA_EMULATION_H_
