// Weights of what a plan keeps, and draws from them.
#include <algorithm>

#include "cpu/sampling_row.h"

namespace sm70 {
namespace {

// Turns the keys of a block into weights under the plan: 0 for what goes.
void weigh_block(const SamplingRow& row, const RowPlan& plan, int64_t at, int count, double maximum, int64_t excluded,
                 SamplingScratch& scratch) {
  row.blocks.masses(scratch.keys, count, maximum, scratch.masses);
  for (int i = 0; i < count; ++i)
    if (!stays(scratch.keys[i], static_cast<uint32_t>(at + i), plan) || at + i == excluded) scratch.masses[i] = 0;
}

uint32_t block_at(const SamplingRow& row, int64_t at, int64_t end, int& count, SamplingScratch& scratch) {
  count = static_cast<int>(std::min<int64_t>(kSamplingBlock, end - at));
  return row.blocks.keys(row.logits + at, count, row.temperature, scratch.keys);
}

uint32_t top_key(const SamplingRow& row, SamplingScratch& scratch) {
  uint32_t top = 0;
  int count;
  for (int span = 0; span < row.spans; ++span) {
    scratch.top[span] = 0;
    const int64_t end = std::min(row.width, (span + 1) * row.span);
    for (int64_t at = span * row.span; at < end; at += kSamplingBlock)
      scratch.top[span] = std::max(scratch.top[span], block_at(row, at, end, count, scratch));
    top = std::max(top, scratch.top[span]);
  }
  return top;
}

// Weight of each span into scratch.amount; returns the row's.
uint64_t weigh_spans(const SamplingRow& row, const RowPlan& plan, double maximum, int64_t excluded,
                     SamplingScratch& scratch) {
  uint64_t total = 0;
  int count;
  for (int span = 0; span < row.spans; ++span) {
    scratch.amount[span] = 0;
    if (scratch.top[span] < plan.cut) continue;
    const int64_t end = std::min(row.width, (span + 1) * row.span);
    for (int64_t at = span * row.span; at < end; at += kSamplingBlock) {
      if (block_at(row, at, end, count, scratch) < plan.cut) continue;
      weigh_block(row, plan, at, count, maximum, excluded, scratch);
      for (int i = 0; i < count; ++i) scratch.amount[span] += scratch.masses[i];
    }
    total += scratch.amount[span];
  }
  return total;
}

// The lowest id with the largest key.
int64_t lowest_maximum(const SamplingRow& row, SamplingScratch& scratch) {
  const uint32_t top = top_key(row, scratch);
  int count;
  for (int span = 0; span < row.spans; ++span) {
    if (scratch.top[span] < top) continue;
    const int64_t end = std::min(row.width, (span + 1) * row.span);
    for (int64_t at = span * row.span; at < end; at += kSamplingBlock) {
      if (block_at(row, at, end, count, scratch) < top) continue;
      return at + (std::find(scratch.keys, scratch.keys + count, top) - scratch.keys);
    }
  }
  return -1;
}

}  // namespace

int64_t draw_row(const SamplingRow& row, const RowPlan& plan, uint64_t bits, int64_t excluded,
                 SamplingScratch& scratch) {
  if (plan.flags & kFault) return -1;
  if (plan.flags & kGreedy) {
    const int64_t token = lowest_maximum(row, scratch);
    return token == excluded ? -1 : token;
  }
  const double maximum = value_of(top_key(row, scratch));
  const uint64_t total = weigh_spans(row, plan, maximum, excluded, scratch);
  if (total == 0) return -1;
  uint64_t left = high_product(bits, total);
  int span = 0;
  while (left >= scratch.amount[span]) left -= scratch.amount[span++];
  const int64_t end = std::min(row.width, (span + 1) * row.span);
  int count;
  for (int64_t at = span * row.span; at < end; at += kSamplingBlock) {
    if (block_at(row, at, end, count, scratch) < plan.cut) continue;
    weigh_block(row, plan, at, count, maximum, excluded, scratch);
    for (int i = 0; i < count; ++i) {
      if (left < scratch.masses[i]) return at + i;
      left -= scratch.masses[i];
    }
  }
  return -1;  // not reached: `left` is below the weight of the span
}

RowWeight weigh_row(const SamplingRow& row, const RowPlan& plan, int64_t token, SamplingScratch& scratch) {
  if (plan.flags & kFault) return {0, 0};
  if (plan.flags & kGreedy) return {lowest_maximum(row, scratch) == token ? kMassOne : 0, kMassOne};
  const double maximum = value_of(top_key(row, scratch));
  const uint64_t total = weigh_spans(row, plan, maximum, -1, scratch);
  uint32_t key;
  row.blocks.keys(row.logits + token, 1, row.temperature, &key);
  return {stays(key, static_cast<uint32_t>(token), plan) ? mass_of(value_of(key), maximum) : 0, total};
}

void mass_row(const SamplingRow& row, const RowPlan& plan, uint64_t* masses, SamplingScratch& scratch) {
  if (plan.flags != 0) {
    std::fill_n(masses, row.width, 0);
    if (!(plan.flags & kFault)) masses[lowest_maximum(row, scratch)] = kMassOne;
    return;
  }
  const double maximum = value_of(top_key(row, scratch));
  int count;
  for (int64_t at = 0; at < row.width; at += kSamplingBlock) {
    if (block_at(row, at, row.width, count, scratch) < plan.cut) {
      std::fill_n(masses + at, count, 0);
      continue;
    }
    weigh_block(row, plan, at, count, maximum, -1, scratch);
    std::copy_n(scratch.masses, count, masses + at);
  }
}

}  // namespace sm70
