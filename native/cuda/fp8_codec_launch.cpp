#include "cuda/driver.h"

namespace {

constexpr int64_t kThreads = 256;
const sm70::Kernel g_encode("fp8_codec", "fp8_encode");
const sm70::Kernel g_decode("fp8_codec", "fp8_decode");
const sm70::Capability g_encode_capability("fp8_encode_cuda", 1);
const sm70::Capability g_decode_capability("fp8_decode_cuda", 1);

sm70::Dim3 blocks(int64_t count) { return {static_cast<unsigned>((count + kThreads - 1) / kThreads)}; }

}  // namespace

// x: FP16 or (wide) FP32 [count] -> codes [count] of x / scale. format: 1 E4M3, 2 E5M2.
SM70_EXPORT int sm70_fp8_encode_cuda(const void* x, int wide, void* codes, int64_t count, float scale, int format,
                                     int device, void* stream, char* err, int64_t err_len) {
  sm70::Error error{err, err_len};
  return g_encode.launch(blocks(count), {kThreads}, 0, {device, stream}, error, x, wide, codes, count, scale, format);
}

// codes [count] -> FP16 or (wide) FP32 [count] of code * scale.
SM70_EXPORT int sm70_fp8_decode_cuda(const void* codes, void* out, int wide, int64_t count, float scale, int format,
                                     int device, void* stream, char* err, int64_t err_len) {
  sm70::Error error{err, err_len};
  return g_decode.launch(blocks(count), {kThreads}, 0, {device, stream}, error, codes, out, wide, count, scale, format);
}
