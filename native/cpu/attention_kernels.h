// Attention of some query rows over one partition of keys; included by kernels_<isa>.cpp after a simd header.
//
// A row's bits depend on its own keys only: keys fall into partitions of kPartition by their absolute position, a
// partition's scores, maximum, weights and weighted sum of values are computed in an order fixed by position, and
// partitions are merged in ascending order. How many rows share a call, or which thread does it, changes nothing.
#ifndef SM70_CPU_ATTENTION_KERNELS_H_
#define SM70_CPU_ATTENTION_KERNELS_H_

#include <cstdint>

#include "cpu/kernels.h"
#include "cpu/kv_kernels.h"
#include "cpu/math_kernels.h"

namespace sm70 {
namespace {

constexpr int kKeys = 16;  // keys that are worked on together: the lanes

// scores[m][key] = sum over d of q[m][d] * keys[d][key], d ascending.
template <int kRows>
inline void score_tile(const float* q, int64_t head_dim, const float* keys, float* scores, int64_t score_stride) {
  F total[kRows];
  for (int m = 0; m < kRows; ++m) total[m] = zero();
  for (int64_t d = 0; d < head_dim; ++d) {
    const F column = load(keys + d * kKeys);
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) total[m] = fma(set(q[m * head_dim + d]), column, total[m]);
  }
  for (int m = 0; m < kRows; ++m) store(scores + m * score_stride, total[m]);
}

void score_rows(const AttentionTile& t, const float* keys, int64_t key) {
  int64_t m = 0;
  for (; m + 4 <= t.rows; m += 4)
    score_tile<4>(t.q + m * t.head_dim, t.head_dim, keys, t.scores + m * kPartition + key, kPartition);
  const float* q = t.q + m * t.head_dim;
  float* scores = t.scores + m * kPartition + key;
  if (t.rows - m == 3) score_tile<3>(q, t.head_dim, keys, scores, kPartition);
  if (t.rows - m == 2) score_tile<2>(q, t.head_dim, keys, scores, kPartition);
  if (t.rows - m == 1) score_tile<1>(q, t.head_dim, keys, scores, kPartition);
}

// Scores of keys begin .. end - 1 become weights exp(score - maximum); the lanes beside them in the first and last
// vector become zero.
inline void softmax_row(float* scores, int64_t begin, int64_t end, float* maximum, float* total) {
  const F nothing = set(-__builtin_inff());
  const auto visible = [&](int64_t at) {
    F v = keep_first(load(scores + at), static_cast<int>(end - at < 16 ? end - at : 16), nothing);
    return begin > at ? keep_first(nothing, static_cast<int>(begin - at), v) : v;
  };
  const int64_t first = begin / 16 * 16;
  F top = nothing;
  for (int64_t at = first; at < end; at += 16) top = max(visible(at), top);
  *maximum = largest(top);
  F sums = zero();
  for (int64_t at = first; at < end; at += 16) {
    F weight = exp(sub(load(scores + at), set(*maximum)));
    weight = keep_first(weight, static_cast<int>(end - at < 16 ? end - at : 16), zero());
    if (begin > at) weight = keep_first(zero(), static_cast<int>(begin - at), weight);
    store(scores + at, weight);
    sums = add(sums, weight);
  }
  *total = sum(sums);
}

// out[d] += weights[key] * values[key][d], key ascending, for kLanes * 16 values of d.
template <int kLanes>
inline void weigh_values(const float* weights, const float* const* values, int64_t begin, int64_t end, int64_t d,
                         float* out) {
  F total[kLanes];
  for (int i = 0; i < kLanes; ++i) total[i] = load(out + d + 16 * i);
  for (int64_t key = begin; key < end; ++key) {
    const F weight = set(weights[key]);
#pragma GCC unroll 4
    for (int i = 0; i < kLanes; ++i) total[i] = fma(weight, load(values[key] + d + 16 * i), total[i]);
  }
  for (int i = 0; i < kLanes; ++i) store(out + d + 16 * i, total[i]);
}

// Where 16 keys or values lie as floats. Rows outside [first, last) are never touched: they read as zeros.
inline void float_rows(const AttentionTile& t, const void* const* rows, int64_t at, float* room, const float** floats) {
  for (int i = 0; i < kKeys; ++i) {
    if (at + i < t.first_key || at + i >= t.last_key) {
      floats[i] = t.zeros;
    } else if (t.kv_code == kKvFloat32) {
      floats[i] = static_cast<const float*>(rows[at + i]);
    } else {
      kv_to_floats(t.kv_code, rows[at + i], t.head_dim, room + i * t.head_dim);
      floats[i] = room + i * t.head_dim;
    }
  }
}

void attend_partition(const AttentionTile& t) {
  const float* floats[kKeys];
  for (int64_t at = t.first_key / kKeys * kKeys; at < t.last_key; at += kKeys) {
    float_rows(t, t.keys, at, t.room, floats);
    transpose_rows(floats, t.head_dim, t.columns);
    score_rows(t, t.columns, at);
  }
  for (int64_t m = 0; m < t.rows; ++m) {
    float* out = t.out + m * t.head_dim;
    for (int64_t d = 0; d < t.head_dim; d += 16) store(out + d, zero());
    if (t.begin[m] < t.end[m]) softmax_row(t.scores + m * kPartition, t.begin[m], t.end[m], t.maxima + m, t.totals + m);
  }
  for (int64_t at = t.first_key / kKeys * kKeys; at < t.last_key; at += kKeys) {
    float_rows(t, t.values, at, t.room, floats);
    for (int64_t m = 0; m < t.rows; ++m) {
      const int64_t begin = t.begin[m] > at ? t.begin[m] - at : 0;
      const int64_t end = t.end[m] - at < kKeys ? t.end[m] - at : kKeys;
      const float* weights = t.scores + m * kPartition + at;
      float* out = t.out + m * t.head_dim;
      int64_t d = 0;
      for (; d + 64 <= t.head_dim; d += 64) weigh_values<4>(weights, floats, begin, end, d, out);
      for (; d < t.head_dim; d += 16) weigh_values<1>(weights, floats, begin, end, d, out);
    }
  }
}

void merge_partition(float maximum, float total, const float* out, int64_t head_dim, AttentionRow* row) {
  const float top = maximum > row->maximum ? maximum : row->maximum;
  float both[16] = {row->maximum - top, maximum - top};
  store(both, exp(load(both)));
  const F old_scale = set(both[0]), new_scale = set(both[1]);
  row->total = __builtin_fmaf(total, both[1], row->total * both[0]);
  for (int64_t d = 0; d < head_dim; d += 16)
    store(row->out + d, fma(load(out + d), new_scale, mul(load(row->out + d), old_scale)));
  row->maximum = top;
}

void finish_row(const AttentionRow& row, int64_t head_dim, float* out) {
  const F total = set(row.total);
  // Zero is a row that sees nothing. A NaN is none of that: it passes into the output.
  for (int64_t d = 0; d < head_dim; d += 16) store(out + d, row.total == 0.0f ? zero() : div(load(row.out + d), total));
}

}  // namespace
}  // namespace sm70

#endif  // SM70_CPU_ATTENTION_KERNELS_H_
