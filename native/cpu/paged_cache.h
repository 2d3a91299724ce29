// A paged KV cache as an op sees it: [num_blocks, block_size, kv_heads, head_dim], strided.
#ifndef SM70_CPU_PAGED_CACHE_H_
#define SM70_CPU_PAGED_CACHE_H_

#include <cstdint>

#include "cpu/kernels.h"

namespace sm70 {

// Strides count elements of the block, the token and the head dimension.
struct PagedCache {
  char* base;
  int64_t element_bytes;
  const int64_t* strides;

  char* row(int64_t block, int64_t offset, int64_t head) const {
    return base + (block * strides[0] + offset * strides[1] + head * strides[2]) * element_bytes;
  }
};

inline int64_t kv_element_bytes(int64_t code) {
  if (code == kKvFloat32) return 4;
  return code == kKvFloat16 ? 2 : 1;
}

}  // namespace sm70

#endif  // SM70_CPU_PAGED_CACHE_H_
