// Paged attention for head dimensions 72 to 128.
#include "paged_attention.cuh"

PAGED_ATTENTION_KERNELS(128, 1)
PAGED_ATTENTION_KERNELS(128, 4)
