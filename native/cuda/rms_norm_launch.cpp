#include "cuda/driver.h"

namespace {
constexpr unsigned kThreads = 256;
const sm70::Kernel g_rms_norm("rms_norm", "rms_norm_f16");
const sm70::Capability g_capability("rms_norm_cuda", 1);
}  // namespace

// x, out: FP16 [rows, width], row strides in halves; weight FP32 [width]. See rms_norm.cu for what must be aligned; the
// Python wrapper has checked it.
SM70_EXPORT int sm70_rms_norm_cuda(const void* x, int64_t x_stride, const void* weight, void* out, int64_t out_stride,
                                   int64_t rows, int width, float eps, int device, void* stream, char* err,
                                   int64_t err_len) {
  sm70::Error error{err, err_len};
  if (width <= 0 || width % 8 != 0) return error.fail("width %d: allowed are positive multiples of 8", width);
  return g_rms_norm.launch({static_cast<unsigned>(rows)}, {kThreads}, 0, {device, stream}, error, x, x_stride, weight,
                           out, out_stride, width, eps);
}
