#include "cuda/driver.h"
#include "cuda/linear.h"

namespace {

constexpr unsigned kThreads = 256;
constexpr int64_t kColumns = 32;
enum Format { kFp16, kFp16Any, kQ41, kQ80, kInt4, kNvfp4, kNvfp4Small, kFormats };
constexpr int64_t kSmallRows = 8;
const char* const kNames[kFormats] = {"FP16",  "FP16 of any alignment", "Q4_1", "Q8_0", "int4",
                                      "NVFP4", "NVFP4 of few rows"};

#define SM70_LINEAR(image, name)  \
  {{image, "linear_" name "_m1"}, \
   {image, "linear_" name "_m2"}, \
   {image, "linear_" name "_m4"}, \
   {image, "linear_" name "_m8"}}
const sm70::Kernel g_fp16[4] = SM70_LINEAR("linear", "f16");
const sm70::Kernel g_q4_1[4] = SM70_LINEAR("linear_packed", "q4_1");
const sm70::Kernel g_q8_0[4] = SM70_LINEAR("linear_packed", "q8_0");
const sm70::Kernel g_int4[4] = SM70_LINEAR("linear_packed", "int4");
const sm70::Kernel g_nvfp4[4] = SM70_LINEAR("linear_packed", "nvfp4");
#undef SM70_LINEAR
const sm70::Kernel g_fp16_any("linear", "linear_f16_any_m1");
const sm70::Kernel g_nvfp4_small("linear_packed", "linear_nvfp4_small_m1");
const sm70::Capability g_capability("linear_cuda", 1);
// One entry serves every format; each is an op of its own to the caller.
const sm70::Capability g_fp16_capability("linear_f16_cuda", 1);
const sm70::Capability g_q4_1_capability("linear_q4_1_cuda", 1);
const sm70::Capability g_q8_0_capability("linear_q8_0_cuda", 1);
const sm70::Capability g_int4_capability("linear_int4_cuda", 1);
const sm70::Capability g_nvfp4_capability("linear_nvfp4_cuda", 1);
const sm70::Capability g_nvfp4_small_capability("linear_nvfp4_small_cuda", 1);

bool vector_rows(const void* pointer, int64_t stride) { return sm70::aligned(pointer, 16) && stride % 8 == 0; }

}  // namespace

// See LinearArgs and linear.cuh; `format` is the enum above.
SM70_EXPORT int sm70_linear_cuda(const LinearArgs* given, int64_t args_bytes, int device, void* stream, char* err,
                                 int64_t err_len) {
  sm70::Error error{err, err_len};
  if (args_bytes != sizeof(LinearArgs))
    return error.fail("argument record of %lld bytes, expected %zu", static_cast<long long>(args_bytes),
                      sizeof(LinearArgs));
  const LinearArgs& args = *given;
  if (args.format < 0 || args.format >= kFormats)
    return error.fail("format %lld: allowed are 0 to %d", static_cast<long long>(args.format), kFormats - 1);
  int64_t format = args.format;
  const bool vector = vector_rows(args.x, args.x_stride) && args.k % 8 == 0;
  if (format == kFp16 && !(vector && vector_rows(args.weight, args.weight_stride))) format = kFp16Any;
  if (format > kFp16Any && (!vector || args.k % 32 != 0))
    return error.fail("%s: needs k a multiple of 32 and rows of x on 16 bytes; saw k %lld, x stride %lld",
                      kNames[format], static_cast<long long>(args.k), static_cast<long long>(args.x_stride));
  if (format == kInt4 && (args.group < 32 || args.group % 32 != 0 || args.k % args.group != 0))
    return error.fail("int4: group %lld must be a multiple of 32 that divides k %lld",
                      static_cast<long long>(args.group), static_cast<long long>(args.k));

  if (format == kNvfp4Small && args.m > kSmallRows)
    return error.fail("%s: %lld rows; allowed: up to %lld", kNames[format], static_cast<long long>(args.m),
                      static_cast<long long>(kSmallRows));

  const int size = format == kFp16Any || args.m <= 8 ? 0 : args.m <= 16 ? 1 : args.m <= 32 ? 2 : 3;
  const sm70::Kernel* const kernels[kFormats] = {g_fp16, &g_fp16_any, g_q4_1, g_q8_0, g_int4, g_nvfp4, &g_nvfp4_small};
  const int64_t rows = int64_t{8} << size;
  const sm70::Dim3 grid{static_cast<unsigned>((args.n + kColumns - 1) / kColumns),
                        static_cast<unsigned>((args.m + rows - 1) / rows)};
  return kernels[format][size].launch(grid, {kThreads}, 0, {device, stream}, error, args);
}
