// GCC 12 takes the undefined source of an unmasked AVX-512 intrinsic for a mistake of ours (its bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#define SM70_KERNELS kKernelsAvx512
#include "cpu/simd_avx512.h"
// The simd header comes first: the kernels are written against it.
#include "cpu/kernels_impl.h"
