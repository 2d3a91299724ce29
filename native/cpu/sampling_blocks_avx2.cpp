#define SM70_SAMPLING_BLOCKS kSamplingAvx2
#include "cpu/sampling_blocks_impl.h"
