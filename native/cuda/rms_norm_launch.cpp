#include "cuda/driver.h"

namespace {

constexpr unsigned kThreads = 256;
const sm70::Kernel g_vector("rms_norm", "rms_norm_f16");
const sm70::Kernel g_any("rms_norm", "rms_norm_any_f16");
const sm70::Capability g_capability("rms_norm_cuda", 1);

}  // namespace

// x, out: FP16 [rows, width], row strides in halves, out may be x; weight: FP32 [width].
SM70_EXPORT int sm70_rms_norm_cuda(const void* x, int64_t x_stride, const void* weight, void* out, int64_t out_stride,
                                   int64_t rows, int width, float eps, int device, void* stream, char* err,
                                   int64_t err_len) {
  sm70::Error error{err, err_len};
  if (width <= 0) return error.fail("width %d: need at least 1", width);
  const bool vector = width % 8 == 0 && x_stride % 8 == 0 && out_stride % 8 == 0 && sm70::aligned(x, 16) &&
                      sm70::aligned(out, 16) && sm70::aligned(weight, 16);
  return (vector ? g_vector : g_any)
      .launch({static_cast<unsigned>(rows)}, {kThreads}, 0, {device, stream}, error, x, x_stride, weight, out,
              out_stride, width, eps);
}
