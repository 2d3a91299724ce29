// What the Gated DeltaNet kernels share.
#ifndef SM70_CUDA_GDN_CUH_
#define SM70_CUDA_GDN_CUH_

#include "device.cuh"
#include "gdn.h"

namespace gdn {

constexpr float kNormEps = 1e-6f;

// Tokens of one sequence; none where the table is damaged.
struct Range {
  int64_t begin = 0, end = 0;
  __device__ Range(const void* query_start, int64_t index, int64_t tokens) {
    const int* starts = static_cast<const int*>(query_start);
    const int64_t first = starts[index], last = starts[index + 1];
    if (first < 0 || last < first || last > tokens) return;
    begin = first;
    end = last;
  }
  __device__ int64_t size() const { return end - begin; }
};

// A slot that is neither -1 nor a state is a fault and counts as -1.
__device__ inline int64_t checked_slot(const void* slots, int64_t at, int64_t states, void* fault, int64_t where,
                                       int64_t index) {
  const int64_t slot = static_cast<const int*>(slots)[at];
  if (slot >= -1 && slot < states) return slot;
  report_fault(static_cast<int*>(fault), kFaultState, where, index, slot);
  return -1;
}

// A token whose state is not kept must not name a slot.
__device__ inline void refuse_slot(const void* slots, const Range& range, int64_t t, void* fault, int64_t sequence) {
  const int slot = static_cast<const int*>(slots)[range.begin + t];
  if (slot != -1) report_fault(static_cast<int*>(fault), kFaultKept, sequence, t, slot);
}

__device__ inline float silu(float x) { return x / (1.0f + expf(-x)); }

}  // namespace gdn

#endif  // SM70_CUDA_GDN_CUH_
