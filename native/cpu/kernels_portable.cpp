#define SM70_KERNELS kKernelsPortable
#include "cpu/simd_portable.h"
// The simd header comes first: the kernels are written against it.
#include "cpu/kernels_impl.h"
