// Linear layers with FP16 weights.
#include "linear.cuh"

LINEAR_KERNELS(f16, Fp16)
LINEAR_KERNEL(f16_any, Fp16Any, 1)
