// Paged attention for head dimensions up to 64.
#include "paged_attention.cuh"

PAGED_ATTENTION_KERNELS(64, 1)
PAGED_ATTENTION_KERNELS(64, 4)
