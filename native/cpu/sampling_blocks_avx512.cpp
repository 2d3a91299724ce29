#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 suspects its own intrinsics' undefined registers
#endif

#define SM70_SAMPLING_BLOCKS kSamplingAvx512
#include "cpu/sampling_blocks_impl.h"
