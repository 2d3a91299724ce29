// Row-wise ops without a product: SwiGLU and embedding look-up.
#include "device.cuh"

namespace {

constexpr int kThreads = 256;

__device__ float silu(float x) { return x / (1.0f + expf(-x)); }

__device__ int64_t id_at(const void* ids, int wide, int64_t at) {
  return wide != 0 ? static_cast<const int64_t*>(ids)[at] : static_cast<const int*>(ids)[at];
}

}  // namespace

// out[m, i] = silu(gate_up[m, i]) * gate_up[m, width + i]. Grid: blocks of elements, rows.
SM70_KERNEL((kThreads), silu_mul_f16, const __half* gate_up, int64_t stride, __half* out, int64_t out_stride,
            int width) {
  const int at = blockIdx.x * kThreads + threadIdx.x;
  if (at >= width) return;
  const __half* row = gate_up + blockIdx.y * stride;
  out[blockIdx.y * out_stride + at] = __float2half_rn(silu(__half2float(row[at])) * __half2float(row[width + at]));
}

// The same, eight at a time: width and strides multiples of 8, rows on 16 bytes.
SM70_KERNEL((kThreads), silu_mul_vector_f16, const __half* gate_up, int64_t stride, __half* out, int64_t out_stride,
            int width) {
  const int at = (blockIdx.x * kThreads + threadIdx.x) * 8;
  if (at >= width) return;
  const __half* row = gate_up + blockIdx.y * stride + at;
  const uint4 gate = *reinterpret_cast<const uint4*>(row);
  const uint4 up = *reinterpret_cast<const uint4*>(row + width);
  const auto pair = [](uint32_t gates, uint32_t ups) {
    const float2 g = __half22float2(half2_from_bits(gates)), u = __half22float2(half2_from_bits(ups));
    return half2_bits(__floats2half2_rn(silu(g.x) * u.x, silu(g.y) * u.y));
  };
  *reinterpret_cast<uint4*>(out + blockIdx.y * out_stride + at) =
      make_uint4(pair(gate.x, up.x), pair(gate.y, up.y), pair(gate.z, up.z), pair(gate.w, up.w));
}

// out[t] = table[ids[t]], FP16; an id that is no row gives zeros and a fault. Grid: tokens.
SM70_KERNEL((kThreads), embedding_f16, const void* ids, int wide, const __half* table, int64_t stride, int64_t rows,
            __half* out, int64_t out_stride, int width, int* fault) {
  const int64_t id = id_at(ids, wide, blockIdx.x);
  const bool there = id >= 0 && id < rows;
  if (!there && threadIdx.x == 0) report_fault(fault, kFaultId, blockIdx.x, 0, id);
  for (int at = threadIdx.x; at < width; at += kThreads)
    out[blockIdx.x * out_stride + at] = there ? table[id * stride + at] : __float2half_rn(0.0f);
}

// The same from Q8_0 tiles of 16 rows x 32 columns (engine.ops.packed): eight words [8][16], then 16 scales. Word w of
// a row holds columns 4 w .. 4 w + 3 in bytes 0, 2, 1, 3, each as code + 128. Scale * code is rounded once.
SM70_KERNEL((kThreads), embedding_q8_0, const void* ids, int wide, const unsigned char* tiles, int64_t rows,
            __half* out, int64_t out_stride, int width, int* fault) {
  constexpr int kTileBytes = 544;
  const int64_t id = id_at(ids, wide, blockIdx.x);
  const bool there = id >= 0 && id < rows;
  if (!there && threadIdx.x == 0) report_fault(fault, kFaultId, blockIdx.x, 0, id);
  const int64_t panel = there ? id / 16 : 0;
  const int row = there ? static_cast<int>(id % 16) : 0;
  for (int at = threadIdx.x; at < width / 4; at += kThreads) {
    const unsigned char* tile = tiles + (panel * (width / 32) + at / 8) * kTileBytes;
    const uint32_t word = reinterpret_cast<const uint32_t*>(tile)[at % 8 * 16 + row];
    const float scale = there ? __half2float(reinterpret_cast<const __half*>(tile + 512)[row]) : 0.0f;
    __half* to = out + blockIdx.x * out_stride + at * 4;
    const int codes[4] = {static_cast<int>(word & 0xff), static_cast<int>(word >> 16 & 0xff),
                          static_cast<int>(word >> 8 & 0xff), static_cast<int>(word >> 24)};
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = __float2half_rn(scale * static_cast<float>(codes[i] - 128));
  }
}
