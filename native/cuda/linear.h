// Arguments of the linear kernels; every field is eight bytes wide (see paged_attention.h).
#ifndef SM70_CUDA_LINEAR_H_
#define SM70_CUDA_LINEAR_H_

#ifndef __CUDACC_RTC__
#include <cstdint>
#endif

struct LinearArgs {
  const void* x;         // FP16 [m, k]
  const void* weight;    // codes or numbers, by format
  const void* params;    // scales beside the codes, by format; may be null
  const void* residual;  // like out, or null
  void* out;             // FP16 or FP32 [m, n]
  int64_t m;
  int64_t n;
  int64_t k;
  int64_t x_stride;  // strides in elements
  int64_t weight_stride;
  int64_t residual_stride;
  int64_t out_stride;
  int64_t group;  // inputs that share a scale (int4)
  int64_t out_fp32;
  double factor;   // of the whole product
  int64_t format;  // see linear_launch.cpp
};

#endif  // SM70_CUDA_LINEAR_H_
