#include <algorithm>

#include "cuda/driver.h"

namespace {

constexpr unsigned kThreads = 256;
const sm70::Kernel g_silu_mul("elementwise", "silu_mul_f16");
const sm70::Kernel g_silu_mul_vector("elementwise", "silu_mul_vector_f16");
const sm70::Kernel g_embedding("elementwise", "embedding_f16");
const sm70::Kernel g_embedding_q8_0("elementwise", "embedding_q8_0");
const sm70::Capability g_silu_mul_capability("silu_mul_cuda", 1);
const sm70::Capability g_embedding_capability("embedding_dense_cuda", 1);
const sm70::Capability g_embedding_q8_0_capability("embedding_q8_0_cuda", 1);

constexpr int64_t kMaxGridY = 65535;

}  // namespace

// gate_up: FP16 [rows, 2 * width]; out: FP16 [rows, width]; strides of rows in halves.
SM70_EXPORT int sm70_silu_mul_cuda(const void* gate_up, int64_t stride, void* out, int64_t out_stride, int64_t rows,
                                   int width, int device, void* stream, char* err, int64_t err_len) {
  sm70::Error error{err, err_len};
  const bool vector =
      width % 8 == 0 && stride % 8 == 0 && out_stride % 8 == 0 && sm70::aligned(gate_up, 16) && sm70::aligned(out, 16);
  const unsigned per_block = kThreads * (vector ? 8 : 1);
  const unsigned blocks = (static_cast<unsigned>(width) + per_block - 1) / per_block;
  for (int64_t first = 0; first < rows; first += kMaxGridY) {
    const auto count = static_cast<unsigned>(std::min(kMaxGridY, rows - first));
    const void* from = static_cast<const char*>(gate_up) + first * stride * 2;
    void* to = static_cast<char*>(out) + first * out_stride * 2;
    const int failed =
        (vector ? g_silu_mul_vector : g_silu_mul)
            .launch({blocks, count}, {kThreads}, 0, {device, stream}, error, from, stride, to, out_stride, width);
    if (failed != 0) return failed;
  }
  return 0;
}

// ids: int32 or (wide) int64 [tokens]; table: FP16 [rows, width]; out: FP16 [tokens, width].
SM70_EXPORT int sm70_embedding_dense_cuda(const void* ids, int wide, int64_t tokens, const void* table, int64_t stride,
                                          int64_t rows, void* out, int64_t out_stride, int width, void* fault,
                                          int device, void* stream, char* err, int64_t err_len) {
  sm70::Error error{err, err_len};
  return g_embedding.launch({static_cast<unsigned>(tokens)}, {kThreads}, 0, {device, stream}, error, ids, wide, table,
                            stride, rows, out, out_stride, width, fault);
}

// The same from Q8_0 tiles [ceil(rows / 16), width / 32, 544].
SM70_EXPORT int sm70_embedding_q8_0_cuda(const void* ids, int wide, int64_t tokens, const void* tiles, int64_t rows,
                                         void* out, int64_t out_stride, int width, void* fault, int device,
                                         void* stream, char* err, int64_t err_len) {
  sm70::Error error{err, err_len};
  if (width % 32 != 0) return error.fail("width %d: need a multiple of 32", width);
  return g_embedding_q8_0.launch({static_cast<unsigned>(tokens)}, {kThreads}, 0, {device, stream}, error, ids, wide,
                                 tiles, rows, out, out_stride, width, fault);
}
