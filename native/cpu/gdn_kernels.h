// Gated DeltaNet, one row or one head at a time; included by kernels_<isa>.cpp after a simd header.
//
// Every sum over a dimension is `dot` (sixteen chains, then a fixed tree) or one chain in ascending order of tokens, so
// a row's bits depend on its own sequence only.
#ifndef SM70_CPU_GDN_KERNELS_H_
#define SM70_CPU_GDN_KERNELS_H_

#include <cstdint>

#include "cpu/kernels.h"
#include "cpu/linear_kernels.h"
#include "cpu/math_kernels.h"
#include "cpu/norm_kernels.h"

namespace sm70 {
namespace {

// Applies `body(at, count)` to sixteen elements at a time; the last call may have fewer.
template <class Body>
inline void for_lanes(int64_t count, const Body& body) {
  for (int64_t at = 0; at < count; at += 16) body(at, static_cast<int>(count - at < 16 ? count - at : 16));
}

// out += factor * x
inline void add_scaled(float factor, const float* x, int64_t count, float* out) {
  for_lanes(count, [&](int64_t at, int lanes) {
    store_first(out + at, fma(set(factor), load_first(x + at, lanes), load_first(out + at, lanes)), lanes);
  });
}

inline void multiply_by(float factor, int64_t count, float* out) {
  for_lanes(count, [&](int64_t at, int lanes) {
    store_first(out + at, mul(set(factor), load_first(out + at, lanes)), lanes);
  });
}

// exp of one number, by the same lanes.
inline float exp_one(float x) {
  float lanes[16];
  store(lanes, exp(set(x)));
  return lanes[0];
}

// out = silu(sum over tap of weight[tap] * rows[tap]), taps oldest first.
void gdn_conv_row(const float* const* rows, const float* weight, int64_t channels, float* out) {
  for_lanes(channels, [&](int64_t at, int lanes) {
    F total = mul(load_first(rows[0] + at, lanes), load_first(weight + at, lanes));
    for (int tap = 1; tap < kGdnTaps; ++tap)
      total = fma(load_first(rows[tap] + at, lanes), load_first(weight + tap * channels + at, lanes), total);
    store_first(out + at, silu(total), lanes);
  });
}

// log(1 + exp(x)) = max(x, 0) + log1p(u), u = exp(-|x|) <= 1; log1p(u) = 2 atanh(z), z = u / (2 + u) <= 1/3, by its
// series to z^19: what is left out is below 2e-11.
inline F softplus(F x) {
  const F u = exp(sub(zero(), max(x, sub(zero(), x))));
  const F z = div(u, add(set(2.0f), u)), square = mul(z, z);
  F series = set(1.0f / 19.0f);
  for (int odd = 17; odd > 1; odd -= 2) series = fma(series, square, set(1.0f / static_cast<float>(odd)));
  series = fma(mul(series, square), z, z);
  return fma(set(2.0f), series, max(zero(), x));
}

void gdn_gates_row(const float* a, const float* b, const float* a_log, const float* dt_bias, int64_t heads,
                   float* log_decay, float* beta) {
  for_lanes(heads, [&](int64_t at, int lanes) {
    const F time = softplus(add(load_first(a + at, lanes), load_first(dt_bias + at, lanes)));
    store_first(log_decay + at, sub(zero(), mul(exp(load_first(a_log + at, lanes)), time)), lanes);
    store_first(beta + at, sigmoid(load_first(b + at, lanes)), lanes);
  });
}

// x / sqrt(sum x^2 + 1e-6) * factor
void gdn_normalize(const float* x, int64_t count, float factor, float* out) {
  const F scale = set(factor / __builtin_sqrtf(sum_of_squares(x, count) + 1e-6f));
  for_lanes(count, [&](int64_t at, int lanes) { store_first(out + at, mul(load_first(x + at, lanes), scale), lanes); });
}

// One token of one head. The state's rows are independent: decay, read with k, correct, read with q.
void gdn_step(const GdnHead& head, const float* q, const float* k, const float* v, float log_decay, float beta,
              float* out) {
  const float decay = exp_one(log_decay);
  for (int64_t row = 0; row < head.value_dim; ++row) {
    float* state = head.state + row * head.key_dim;
    multiply_by(decay, head.key_dim, state);
    add_scaled(beta * (v[row] - dot(state, k, head.key_dim)), k, head.key_dim, state);
    out[row] = dot(state, q, head.key_dim);
  }
}

// Up to kGdnChunk tokens of one head at once. With b the running sum of log decays inside the chunk and D_ij =
// exp(b_i - b_j), forward substitution gives
//   W_i = beta_i exp(b_i) k_i - sum_{j<i} A_ij W_j,   U_i = beta_i v_i - sum_{j<i} A_ij U_j,   A_ij = beta_i (k_i.k_j)
//   D_ij N_i = U_i - S W_i,   out_i = exp(b_i) S q_i + sum_{j<=i} (q_i.k_j) D_ij N_j,   S' = exp(b_n) S + sum_j D_nj
//   N_j k_j^T
// Only differences b_i - b_j with i >= j are ever exponents: none is positive.
void gdn_chunk(const GdnHead& head, const GdnChunk& c) {
  const int64_t keys = head.key_dim, values = head.value_dim;
  float sums[kGdnChunk], factors[kGdnChunk];
  float running = 0.0f;
  for (int64_t i = 0; i < c.tokens; ++i) sums[i] = running += c.log_decay[i];
  for (int64_t i = 0; i < c.tokens; ++i) {
    float *w = c.w + i * keys, *u = c.u + i * values;
    const float *k = c.k + i * keys, *v = c.v[i];
    const float key_factor = c.beta[i] * exp_one(sums[i]);
    for (int64_t d = 0; d < keys; ++d) w[d] = key_factor * k[d];
    for (int64_t d = 0; d < values; ++d) u[d] = c.beta[i] * v[d];
    for (int64_t j = 0; j < i; ++j) {
      const float a = c.beta[i] * dot(k, c.k + j * keys, keys) * exp_one(sums[i] - sums[j]);
      add_scaled(-a, c.w + j * keys, keys, w);
      add_scaled(-a, c.u + j * values, values, u);
    }
  }
  for (int64_t i = 0; i < c.tokens; ++i) {
    const float* q = c.q + i * keys;
    const float state_factor = exp_one(sums[i]);
    for (int64_t row = 0; row < values; ++row) {
      const float* state = head.state + row * keys;
      c.u[i * values + row] -= dot(state, c.w + i * keys, keys);
      c.out[i][row] = state_factor * dot(state, q, keys);
    }
    for (int64_t j = 0; j <= i; ++j)
      add_scaled(dot(q, c.k + j * keys, keys) * exp_one(sums[i] - sums[j]), c.u + j * values, values, c.out[i]);
  }
  for (int64_t i = 0; i < c.tokens; ++i) factors[i] = exp_one(running - sums[i]);
  const float decay = exp_one(running);
  for (int64_t row = 0; row < values; ++row) {
    float* state = head.state + row * keys;
    multiply_by(decay, keys, state);
    for (int64_t i = 0; i < c.tokens; ++i) add_scaled(factors[i] * c.u[i * values + row], c.k + i * keys, keys, state);
  }
}

// RMSNorm of a head, then times silu(z).
void gdn_gated_rms_norm_row(const float* x, const float* z, const float* weight, int64_t count, float eps, float* out) {
  const F scale = set(1.0f / __builtin_sqrtf(sum_of_squares(x, count) / static_cast<float>(count) + eps));
  for_lanes(count, [&](int64_t at, int lanes) {
    const F normed = mul(mul(load_first(x + at, lanes), scale), load_first(weight + at, lanes));
    store_first(out + at, mul(normed, silu(load_first(z + at, lanes))), lanes);
  });
}

}  // namespace
}  // namespace sm70

#endif  // SM70_CPU_GDN_KERNELS_H_
