#include "cuda/driver.h"

namespace {
constexpr unsigned kThreads = 256;
constexpr int kWarps = 8;
const sm70::Kernel g_candidate_logits("candidate_logits", "candidate_logits_f16");
const sm70::Capability g_capability("candidate_logits_cuda", 1);
}  // namespace

// x: FP16 [m, k]; weight: FP16 [rows, k]; ids: int64 [m, candidates]; out: FP32 [m, candidates].
SM70_EXPORT int sm70_candidate_logits_cuda(const void* x, int64_t x_stride, int64_t m, const void* weight,
                                           int64_t weight_stride, int64_t rows, const void* ids, int64_t ids_stride,
                                           int candidates, void* out, int64_t out_stride, int k, void* fault,
                                           int device, void* stream, char* err, int64_t err_len) {
  sm70::Error error{err, err_len};
  if (k % 8 != 0) return error.fail("k %d: need a multiple of 8", k);
  const sm70::Dim3 grid{static_cast<unsigned>((candidates + kWarps - 1) / kWarps), static_cast<unsigned>(m)};
  return g_candidate_logits.launch(grid, {kThreads}, 0, {device, stream}, error, x, x_stride, weight, weight_stride,
                                   rows, ids, ids_stride, candidates, out, out_stride, k, fault);
}
