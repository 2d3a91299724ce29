#define SM70_SAMPLING_BLOCKS kSamplingPortable
#include "cpu/sampling_blocks_impl.h"
