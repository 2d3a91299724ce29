// Paged attention for head dimensions 136 to 256.
#include "paged_attention.cuh"

// Three row tiles are for the q8 verification of six query heads a KV head.
PAGED_ATTENTION_KERNELS(256, 1)
PAGED_ATTENTION_KERNELS(256, 3)
PAGED_ATTENTION_KERNELS(256, 4)
