// Gated DeltaNet around its recurrence: convolution with state, gates, gated norm.
#include <cstring>

#include "cpu/gdn_slots.h"
#include "cpu/kernels.h"
#include "cpu/scratch.h"
#include "op.h"
#include "pool.h"

namespace {

using sm70::kGdnTaps;
constexpr int kBefore = kGdnTaps - 1;  // rows that the state holds

struct GdnConvArgs {
  const float* x;
  const float* weight;  // [channels, 4]
  float* state;         // [states, 3, channels]
  float* out;
  int64_t channels, x_stride, out_stride;
  sm70::GdnSlots slots;
};

struct GdnGatesArgs {
  const float* a;
  const float* b;
  const float* a_log;
  const float* dt_bias;
  float* log_decay;
  float* beta;
  int64_t tokens, heads, a_stride, b_stride;
};

struct GdnGatedNormArgs {
  const float* x;
  const float* z;
  const float* weight;
  float* out;
  int64_t tokens, heads, dim, x_stride, z_stride, out_stride;
  double eps;
};

// One sequence. `before` is a copy of its initial state, which one of its own tokens may overwrite.
void convolve(const GdnConvArgs& a, int64_t sequence, const float* weight, const float* before) {
  const int64_t first = a.slots.query_start[sequence], last = a.slots.query_start[sequence + 1];
  const auto row = [&](int64_t t) {
    return t >= first ? a.x + t * a.x_stride : before + (t - first + kBefore) * a.channels;
  };
  const std::size_t row_bytes = static_cast<std::size_t>(a.channels) * sizeof(float);
  for (int64_t t = first; t < last; ++t) {
    const float* rows[kGdnTaps];
    for (int tap = 0; tap < kGdnTaps; ++tap) rows[tap] = row(t - kBefore + tap);
    sm70::kernels().gdn_conv_row(rows, weight, a.channels, a.out + t * a.out_stride);
    if (a.slots.slots[t] < 0) continue;
    float* kept = a.state + a.slots.slots[t] * kBefore * a.channels;
    for (int tap = 1; tap < kGdnTaps; ++tap) std::memcpy(kept + (tap - 1) * a.channels, rows[tap], row_bytes);
  }
}

}  // namespace

SM70_OP(gdn_conv_cpu, 1, GdnConvArgs) {
  const GdnConvArgs& a = *args;
  if (const int status = a.slots.check(false)) return status;
  static thread_local sm70::Scratch scratch;
  const int64_t floats = a.channels * (kGdnTaps + kBefore * a.slots.batch);
  float* weight = reinterpret_cast<float*>(scratch.take(static_cast<std::size_t>(floats) * sizeof(float)));
  if (weight == nullptr)
    return sm70::fail(sm70::kFailed, "gdn_conv: no memory for %lld floats", static_cast<long long>(floats));
  for (int64_t c = 0; c < a.channels; ++c)
    for (int tap = 0; tap < kGdnTaps; ++tap) weight[tap * a.channels + c] = a.weight[c * kGdnTaps + tap];
  float* const before = weight + kGdnTaps * a.channels;
  const int64_t state_floats = kBefore * a.channels;
  for (int64_t b = 0; b < a.slots.batch; ++b)
    if (a.slots.initial_slots[b] >= 0)
      std::memcpy(before + b * state_floats, a.state + a.slots.initial_slots[b] * state_floats,
                  static_cast<std::size_t>(state_floats) * sizeof(float));
  sm70::parallel_for(a.slots.batch, [&](int64_t b) {
    if (a.slots.initial_slots[b] >= 0) return convolve(a, b, weight, before + b * state_floats);
    for (int64_t t = a.slots.query_start[b]; t < a.slots.query_start[b + 1]; ++t)
      std::memset(a.out + t * a.out_stride, 0, static_cast<std::size_t>(a.channels) * sizeof(float));
  });
  return sm70::kOk;
}

SM70_OP(gdn_gates_cpu, 1, GdnGatesArgs) {
  const GdnGatesArgs& a = *args;
  for (int64_t t = 0; t < a.tokens; ++t)
    sm70::kernels().gdn_gates_row(a.a + t * a.a_stride, a.b + t * a.b_stride, a.a_log, a.dt_bias, a.heads,
                                  a.log_decay + t * a.heads, a.beta + t * a.heads);
  return sm70::kOk;
}

SM70_OP(gdn_gated_rms_norm_cpu, 1, GdnGatedNormArgs) {
  const GdnGatedNormArgs& a = *args;
  sm70::parallel_for(a.tokens, [&](int64_t t) {
    for (int64_t h = 0; h < a.heads; ++h)
      sm70::kernels().gdn_gated_rms_norm_row(a.x + t * a.x_stride + h * a.dim, a.z + t * a.z_stride + h * a.dim,
                                             a.weight, a.dim, static_cast<float>(a.eps),
                                             a.out + t * a.out_stride + h * a.dim);
  });
  return sm70::kOk;
}
