// The plan of one row. Ordinary rows: the k-th largest of the spans' maxima bounds the k-th largest value from below,
// so only the spans that reach it are looked at again and the few survivors are sorted. Every other row: a radix walk
// over the keys, three digits from the top, for the k-th value and then for the edge of the nucleus. Same answer either
// way.
#include <algorithm>
#include <functional>

#include "cpu/sampling_row.h"

namespace sm70 {
namespace {

// Calls body(first id, count, keys, largest key) for the blocks of a span.
template <class Body>
void each_block(const SamplingRow& row, int span, SamplingScratch& scratch, Body&& body) {
  const int64_t end = std::min(row.width, (span + 1) * row.span);
  for (int64_t at = span * row.span; at < end; at += kSamplingBlock) {
    const int count = static_cast<int>(std::min<int64_t>(kSamplingBlock, end - at));
    const uint32_t top = row.blocks.keys(row.logits + at, count, row.temperature, scratch.keys);
    body(at, count, scratch.keys, top);
  }
}

uint32_t scan_row(const SamplingRow& row, SamplingScratch& scratch) {
  uint32_t row_top = 0;
  for (int span = 0; span < row.spans; ++span) {
    uint32_t span_top = 0;
    each_block(row, span, scratch,
               [&](int64_t, int, const uint32_t*, uint32_t top) { span_top = std::max(span_top, top); });
    scratch.top[span] = span_top;
    row_top = std::max(row_top, span_top);
  }
  return row_top;
}

// Collects every entry with a key in [low, high]; false when there are more than kCandidates.
bool collect(const SamplingRow& row, uint32_t low, uint32_t high, SamplingScratch& scratch, int& found) {
  found = 0;
  bool fits = true;
  for (int span = 0; span < row.spans && fits; ++span) {
    if (scratch.top[span] < low) continue;
    each_block(row, span, scratch, [&](int64_t at, int count, const uint32_t* keys, uint32_t top) {
      if (top < low || !fits) return;
      for (int i = 0; i < count; ++i) {
        if (keys[i] < low || keys[i] > high) continue;
        if (found == kCandidates) {
          fits = false;
          return;
        }
        scratch.candidates[found++] = static_cast<uint64_t>(keys[i]) << 32 | static_cast<uint64_t>(at + i);
      }
    });
  }
  return fits;
}

uint64_t count_equal(const SamplingRow& row, uint32_t key, SamplingScratch& scratch) {
  uint64_t equal = 0;
  for (int span = 0; span < row.spans; ++span) {
    if (scratch.top[span] < key) continue;
    each_block(row, span, scratch, [&](int64_t, int count, const uint32_t* keys, uint32_t) {
      uint32_t here = 0;
      for (int i = 0; i < count; ++i) here += keys[i] == key;
      equal += here;
    });
  }
  return equal;
}

// The key at which the amount (entries, or mass) of larger keys is below a limit and that of itself and larger is not.
struct Edge {
  uint32_t key;
  uint64_t above;  // amount of larger keys
  uint64_t ties;   // amount of the key itself
};

// Walks the keys that are at least `floor` digit by digit. `limit_of(total)` gives the limit, in 1 .. total.
template <bool kByMass, class LimitOf>
Edge find_edge(const SamplingRow& row, uint32_t floor, double maximum, SamplingScratch& scratch, LimitOf&& limit_of) {
  struct Digit {
    int shift;
    int bits;
  };
  constexpr Digit kDigitsOfKey[] = {{21, 11}, {10, 11}, {0, 10}};
  uint32_t prefix = 0;
  uint32_t known = 0;  // bits of the key that the prefix fixes
  uint64_t limit = 0;
  uint64_t above = 0;
  uint64_t ties = 0;
  for (const Digit digit : kDigitsOfKey) {
    std::fill_n(scratch.amount, 1 << digit.bits, 0);
    const uint32_t mask = (1u << digit.bits) - 1;
    for (int span = 0; span < row.spans; ++span) {
      if (scratch.top[span] < std::max(floor, prefix)) continue;
      each_block(row, span, scratch, [&](int64_t, int count, uint32_t* keys, uint32_t top) {
        if (top < std::max(floor, prefix)) return;
        int live = 0;
        for (int i = 0; i < count; ++i) {
          keys[live] = keys[i];
          live += keys[i] >= floor && (keys[i] & known) == prefix;
        }
        if (kByMass) row.blocks.masses(keys, live, maximum, scratch.masses);
        for (int i = 0; i < live; ++i) scratch.amount[keys[i] >> digit.shift & mask] += kByMass ? scratch.masses[i] : 1;
      });
    }
    if (known == 0) {
      uint64_t total = 0;
      for (uint32_t value = 0; value <= mask; ++value) total += scratch.amount[value];
      limit = limit_of(total);
    }
    uint32_t value = mask;
    while (above + scratch.amount[value] < limit) above += scratch.amount[value--];
    ties = scratch.amount[value];
    prefix |= value << digit.shift;
    known |= mask << digit.shift;
  }
  return {prefix, above, ties};
}

// The id of the `rank`-th (from 1) highest id among the entries whose key is `key`.
uint32_t tie_from_the_end(const SamplingRow& row, uint32_t key, uint64_t rank, SamplingScratch& scratch) {
  for (int span = row.spans - 1; span >= 0; --span) {
    if (scratch.top[span] < key) continue;
    uint64_t here = 0;
    each_block(row, span, scratch, [&](int64_t, int count, const uint32_t* keys, uint32_t) {
      for (int i = 0; i < count; ++i) here += keys[i] == key;
    });
    if (here < rank) {
      rank -= here;
      continue;
    }
    uint64_t skip = here - rank;  // ties of this span with lower ids
    uint32_t id = 0;
    bool found = false;
    each_block(row, span, scratch, [&](int64_t at, int count, const uint32_t* keys, uint32_t) {
      for (int i = 0; i < count && !found; ++i) {
        if (keys[i] != key) continue;
        found = skip-- == 0;
        if (found) id = static_cast<uint32_t>(at + i);
      }
    });
    return id;
  }
  return 0;
}

// The plan whose edge is the last of `count` sorted candidates that has less than `limit` mass ahead, starting from
// `ahead`; there is one.
RowPlan edge_of_sorted(const SamplingRow& row, uint32_t threshold, uint64_t ahead, uint64_t limit, int count,
                       double maximum, SamplingScratch& scratch) {
  int last = 0;
  for (int at = 0; at < count; at += kSamplingBlock) {
    const int here = std::min(kSamplingBlock, count - at);
    row.blocks.masses(scratch.sorted + at, here, maximum, scratch.masses);
    for (int i = 0; i < here && ahead < limit; ++i) {
      last = at + i;
      ahead += scratch.masses[i];
    }
  }
  const bool split = last + 1 < count && scratch.sorted[last + 1] == scratch.sorted[last];
  return {threshold, scratch.sorted[last], split ? static_cast<uint32_t>(scratch.candidates[last]) : 0, 0};
}

void sort_candidates(int count, SamplingScratch& scratch) {
  std::sort(scratch.candidates, scratch.candidates + count, std::greater<>());
  for (int i = 0; i < count; ++i) scratch.sorted[i] = static_cast<uint32_t>(scratch.candidates[i] >> 32);
}

// The plan whose edge is the `rank`-th highest id of `ties` entries with `key`.
RowPlan plan_in_tie(const SamplingRow& row, uint32_t threshold, uint32_t key, uint64_t rank, uint64_t ties,
                    SamplingScratch& scratch) {
  return {threshold, key, rank < ties ? tie_from_the_end(row, key, rank, scratch) : 0, 0};
}

// The nucleus of `count` candidates above the bound and, where the bound is the threshold, of the entries equal to it.
RowPlan nucleus_of_few(const SamplingRow& row, uint32_t threshold, uint32_t bound, float top_p, uint32_t top, int count,
                       SamplingScratch& scratch) {
  const double maximum = value_of(top);
  sort_candidates(count, scratch);
  uint64_t strict = 0;
  for (int at = 0; at < count; at += kSamplingBlock)
    strict += row.blocks.masses(scratch.sorted + at, std::min(kSamplingBlock, count - at), maximum, scratch.masses);
  const uint64_t ties = threshold == bound ? count_equal(row, bound, scratch) : 0;
  const uint64_t each = mass_of(value_of(bound), maximum);
  const uint64_t limit = nucleus_limit(top_p, strict + ties * each);
  if (strict >= limit) return edge_of_sorted(row, threshold, 0, limit, count, maximum, scratch);
  return plan_in_tie(row, threshold, bound, (limit - strict + each - 1) / each, ties, scratch);
}

// Bins of mass: five bits below the leading one, so that a bin holds values less than a thirty-second of a factor two
// apart. Mass never rises as the value falls, so a bin is a range of keys.
constexpr int kBinBits = 5;
constexpr int kBins = (kMassBits + 1) << kBinBits;
static_assert(kBins <= kDigits, "bins share the digits' scratch");

int bin_of(uint64_t mass) {
  const int leading = 63 - __builtin_clzll(mass | 1);
  const uint64_t below = leading >= kBinBits ? mass >> (leading - kBinBits) : mass << (kBinBits - leading);
  return leading << kBinBits | static_cast<int>(below & ((1 << kBinBits) - 1));
}

// The smallest key of at most `top` whose mass is in `bin` or a higher one.
uint32_t first_key_of_bin(int bin, uint32_t top, double maximum) {
  uint32_t below = kKeyNegativeInfinity;  // weighs nothing
  while (top - below > 1) {
    const uint32_t middle = below + (top - below) / 2;
    const uint64_t mass = mass_of(value_of(middle), maximum);
    (mass != 0 && bin_of(mass) >= bin ? top : below) = middle;
  }
  return top;
}

RowPlan nucleus_by_digits(const SamplingRow& row, uint32_t threshold, float top_p, uint32_t top,
                          SamplingScratch& scratch) {
  const double maximum = value_of(top);
  uint64_t limit = 0;
  const Edge edge = find_edge<true>(row, threshold, maximum, scratch,
                                    [&](uint64_t total) { return limit = nucleus_limit(top_p, total); });
  const uint64_t each = mass_of(value_of(edge.key), maximum);
  return plan_in_tie(row, threshold, edge.key, (limit - edge.above + each - 1) / each, edge.ties / each, scratch);
}

// The nucleus of every entry that is at least the threshold: one pass sums the bins, one collects the edge's bin.
RowPlan nucleus_of_many(const SamplingRow& row, uint32_t threshold, float top_p, uint32_t top,
                        SamplingScratch& scratch) {
  const double maximum = value_of(top);
  std::fill_n(scratch.amount, kBins, 0);
  uint64_t total = 0;
  for (int span = 0; span < row.spans; ++span) {
    if (scratch.top[span] < threshold) continue;
    each_block(row, span, scratch, [&](int64_t, int count, const uint32_t* keys, uint32_t top_of_block) {
      if (top_of_block < threshold) return;
      row.blocks.masses(keys, count, maximum, scratch.masses);
      for (int i = 0; i < count; ++i) {
        const uint64_t mass = keys[i] >= threshold ? scratch.masses[i] : 0;
        scratch.amount[bin_of(mass)] += mass;
        total += mass;
      }
    });
  }
  const uint64_t limit = nucleus_limit(top_p, total);
  int bin = kBins - 1;
  uint64_t ahead = 0;
  while (ahead + scratch.amount[bin] < limit) ahead += scratch.amount[bin--];
  const uint32_t low = std::max(threshold, first_key_of_bin(bin, top, maximum));
  const uint32_t high = bin + 1 == kBins ? top : std::max(low, first_key_of_bin(bin + 1, top + 1, maximum) - 1);
  if (low == high) {
    const uint64_t each = mass_of(value_of(low), maximum);
    return plan_in_tie(row, threshold, low, (limit - ahead + each - 1) / each, scratch.amount[bin] / each, scratch);
  }
  int found = 0;
  if (!collect(row, low, high, scratch, found)) return nucleus_by_digits(row, threshold, top_p, top, scratch);
  sort_candidates(found, scratch);
  return edge_of_sorted(row, threshold, ahead, limit, found, maximum, scratch);
}

}  // namespace

RowPlan plan_row(const SamplingRow& row, int64_t top_k, float top_p, uint32_t flags, SamplingScratch& scratch) {
  if (flags & kBadParameter) return {0, 0, 0, kBadParameter};
  const uint32_t top = scan_row(row, scratch);
  if (const uint32_t fault = row_fault(top)) return {0, 0, 0, fault};
  if (flags & kGreedy) return {0, 0, 0, kGreedy};

  uint32_t threshold = 0;
  if (top_k > 0 && top_k < row.width) {
    if (top_k <= row.spans) {
      uint32_t* maxima = scratch.sorted;
      std::copy_n(scratch.top, row.spans, maxima);
      std::nth_element(maxima, maxima + (top_k - 1), maxima + row.spans, std::greater<>());
      const uint32_t bound = maxima[top_k - 1];
      int above = 0;
      if (bound == top || collect(row, bound + 1, top, scratch, above)) {
        // With k or more above the bound the k-th is among them; else the bound itself is the k-th.
        uint64_t* all = scratch.candidates;
        threshold = bound;
        if (above >= top_k) {
          std::nth_element(all, all + (top_k - 1), all + above, std::greater<>());
          threshold = static_cast<uint32_t>(all[top_k - 1] >> 32);
          above = static_cast<int>(
              std::partition(all, all + above, [&](uint64_t one) { return one >> 32 >= threshold; }) - all);
        }
        if (top_p == 1.0f) return {threshold, threshold, 0, 0};
        return nucleus_of_few(row, threshold, bound, top_p, top, above, scratch);
      }
    }
    threshold = find_edge<false>(row, 0, 0, scratch, [&](uint64_t) { return static_cast<uint64_t>(top_k); }).key;
  }
  if (top_p == 1.0f) return {threshold, threshold, 0, 0};
  return nucleus_of_many(row, threshold, top_p, top, scratch);
}

}  // namespace sm70
