// One row of logits: its keys a block at a time, the plan of its cutoffs, and draws from what the plan keeps.
#ifndef SM70_CPU_SAMPLING_ROW_H_
#define SM70_CPU_SAMPLING_ROW_H_

#include <cstdint>

#include "cpu/sampling_blocks.h"
#include "cuda/sampling_rule.cuh"

namespace sm70 {

// A span is a whole number of blocks; a row has at most this many, so what is kept a span has a fixed size.
constexpr int kSpans = 1024;
// Survivors of top-k that are sorted at once; more of them go the way of the radix, with the same answer.
constexpr int kCandidates = 4096;
constexpr int kDigitBits = 11;
constexpr int kDigits = 1 << kDigitBits;

// Scratch of one thread, 100 KiB whatever the width of the row.
struct SamplingScratch {
  uint32_t top[kSpans];              // largest key of each span
  uint64_t amount[kDigits];          // mass or count by digit, or mass by span
  uint64_t candidates[kCandidates];  // key in the high half, id in the low
  uint32_t sorted[kCandidates];      // keys of the candidates, largest first
  uint32_t keys[kSamplingBlock];
  uint64_t masses[kSamplingBlock];
};

struct SamplingRow {
  SamplingRow(const float* logits, int64_t width, float temperature, const SamplingBlocks& blocks)
      : logits(logits), width(width), temperature(temperature), blocks(blocks) {
    span = (width + int64_t(kSpans) * kSamplingBlock - 1) / (int64_t(kSpans) * kSamplingBlock) * kSamplingBlock;
    spans = static_cast<int>((width + span - 1) / span);
  }

  const float* logits;
  int64_t width;
  float temperature;  // 1 for a greedy row
  const SamplingBlocks& blocks;
  int64_t span;
  int spans;
};

RowPlan plan_row(const SamplingRow& row, int64_t top_k, float top_p, uint32_t flags, SamplingScratch& scratch);

// Weight of one token and of the row; zeros for a row at fault.
struct RowWeight {
  uint64_t token;
  uint64_t total;
};
RowWeight weigh_row(const SamplingRow& row, const RowPlan& plan, int64_t token, SamplingScratch& scratch);

// The token drawn by 64 random bits without `excluded` (-1: none), or -1 where there is nothing to draw.
int64_t draw_row(const SamplingRow& row, const RowPlan& plan, uint64_t bits, int64_t excluded,
                 SamplingScratch& scratch);

// Weights of every entry.
void mass_row(const SamplingRow& row, const RowPlan& plan, uint64_t* masses, SamplingScratch& scratch);

}  // namespace sm70

#endif  // SM70_CPU_SAMPLING_ROW_H_
