#define SM70_KERNELS kKernelsAvx2
#include "cpu/simd_avx2.h"
// The simd header comes first: the kernels are written against it.
#include "cpu/kernels_impl.h"
