// The two inner loops of the sampling ops, a block at a time; one compilation an instruction set, the same bits in
// each.
#ifndef SM70_CPU_SAMPLING_BLOCKS_H_
#define SM70_CPU_SAMPLING_BLOCKS_H_

#include <cstdint>

#include "cuda/sampling_rule.cuh"

namespace sm70 {

constexpr int kSamplingBlock = 256;

struct SamplingBlocks {
  // Ordered keys of `count` <= kSamplingBlock logits, each divided by `temperature` first unless that is 1. Returns the
  // largest key.
  uint32_t (*keys)(const float* logits, int count, float temperature, uint32_t* keys);
  // Integer weights of `count` <= kSamplingBlock keys in a row whose largest value is `maximum`. Returns their sum.
  // `masses` has room for a whole block.
  uint64_t (*masses)(const uint32_t* keys, int count, double maximum, uint64_t* masses);
  // Cuts `count` logits in place, the first of which has the id `first`: a quotient where the plan keeps it, else
  // `mask`.
  void (*apply)(float* logits, int count, float temperature, const RowPlan& plan, uint32_t first, float mask);
};

extern const SamplingBlocks kSamplingPortable;
extern const SamplingBlocks kSamplingAvx2;
extern const SamplingBlocks kSamplingAvx512;

// The table of the instruction set in use.
const SamplingBlocks& sampling_blocks();

}  // namespace sm70

#endif  // SM70_CPU_SAMPLING_BLOCKS_H_
