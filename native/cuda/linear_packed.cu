// Linear layers with packed weights: GGUF Q4_1 and Q8_0, int4 with zero points, NVFP4.
#include "linear.cuh"

LINEAR_KERNELS(q4_1, Q41)
LINEAR_KERNELS(q8_0, Q80)
LINEAR_KERNELS(int4, Int4)
LINEAR_KERNELS(nvfp4, Nvfp4)

// Few rows of x leave little work between the loads: three chunks ahead instead of one hide more of their way.
LINEAR_KERNEL(nvfp4_small, Nvfp4, 1, 3)
