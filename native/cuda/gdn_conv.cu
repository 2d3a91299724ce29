// Gated DeltaNet, outside the recurrence: causal convolution with state, gates, gated norm.
#include "gdn.cuh"

namespace {

constexpr int kThreads = 256;
constexpr int kTaps = 4;
constexpr int kHistory = kTaps - 1;
constexpr int kTokensAtATime = 64;

}  // namespace

// y_t[c] = silu(sum_i w[c, i] x_{t - 3 + i}[c]), x before the sequence from its state. Grid: blocks of channels,
// sequences, stretches of 64 tokens. The first stretch alone touches the state, so that it has read the initial slot
// before any slot is written.
SM70_KERNEL((kThreads), gdn_conv, GdnConvArgs args) {
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t sequence = blockIdx.y;
  const gdn::Range range(args.query_start, sequence, args.tokens);
  if (channel >= args.channels) return;
  __half* out = static_cast<__half*>(args.out) + channel;
  __half* state = static_cast<__half*>(args.state) + channel;
  const __half* x = static_cast<const __half*>(args.x) + channel;
  const int64_t first = gdn::checked_slot(args.initial_slots, sequence, args.states, args.fault, sequence, -1);

  float oldest = 0.0f, older = 0.0f, old = 0.0f;
  if (first >= 0) {
    const __half* from = state + first * kHistory * args.channels;
    oldest = __half2float(from[0]);
    older = __half2float(from[args.channels]);
    old = __half2float(from[2 * args.channels]);
  }
  // Input `t` of the sequence, counted from its start; negative: from the state.
  const auto input = [&](int64_t t) {
    if (t >= 0) return __half2float(x[(range.begin + t) * args.x_stride]);
    return t == -1 ? old : t == -2 ? older : oldest;
  };

  float weight[kTaps];
  for (int i = 0; i < kTaps; ++i) weight[i] = static_cast<const float*>(args.weight)[channel * kTaps + i];
  // Stretches stride over the grid, so that any length is covered by a grid that does not know it.
  for (int64_t begin = blockIdx.z * int64_t{kTokensAtATime}; begin < range.size();
       begin += gridDim.z * int64_t{kTokensAtATime}) {
    const int64_t end = min(begin + kTokensAtATime, range.size());
    float a = input(begin - 3), b = input(begin - 2), c = input(begin - 1);
    for (int64_t t = begin; t < end; ++t) {
      const float d = input(t);
      const float sum = weight[0] * a + weight[1] * b + weight[2] * c + weight[3] * d;
      out[(range.begin + t) * args.out_stride] = __float2half_rn(first >= 0 ? gdn::silu(sum) : 0.0f);
      a = b, b = c, c = d;
      if (channel == 0 && t < range.size() - kGdnKept) gdn::refuse_slot(args.slots, range, t, args.fault, sequence);
    }
  }

  if (blockIdx.z != 0 || first < 0) return;
  for (int64_t t = max(range.size() - kGdnKept, int64_t{0}); t < range.size(); ++t) {
    const int64_t slot = gdn::checked_slot(args.slots, range.begin + t, args.states, args.fault, sequence, t);
    if (slot < 0) continue;
    for (int i = 0; i < kHistory; ++i)
      state[(slot * kHistory + i) * args.channels] = __float2half_rn(input(t - (kHistory - 1) + i));
  }
}

// log_decay = -exp(a_log) softplus(a + dt_bias), beta = sigmoid(b); a, b: FP16 [T, heads]. Grid: blocks of elements.
SM70_KERNEL((kThreads), gdn_gates, const __half* a, int64_t a_stride, const __half* b, int64_t b_stride,
            const float* a_log, const float* dt_bias, float* log_decay, float* beta, int64_t tokens, int heads) {
  constexpr float kLinearAbove = 20.0f;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= tokens * heads) return;
  const int64_t token = at / heads;
  const int head = static_cast<int>(at % heads);
  const float x = __half2float(a[token * a_stride + head]) + dt_bias[head];
  const float softplus = x > kLinearAbove ? x : log1pf(expf(x));
  log_decay[at] = -expf(a_log[head]) * softplus;
  beta[at] = 1.0f / (1.0f + expf(-__half2float(b[token * b_stride + head])));
}

// out = x / sqrt(mean(x^2) + eps) * weight * silu(z) over the last dimension. One warp a row of [tokens, heads, dim].
SM70_KERNEL((kThreads), gdn_gated_rms_norm, const __half* x, int64_t x_token_stride, const __half* z,
            int64_t z_token_stride, const float* weight, __half* out, int64_t out_token_stride, int64_t rows, int heads,
            int dim, float eps) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (row >= rows) return;
  const int lane = threadIdx.x % kWarp;
  const int64_t token = row / heads, head = row % heads;
  const __half* own = x + token * x_token_stride + head * dim;
  const __half* gate = z + token * z_token_stride + head * dim;
  __half* to = out + token * out_token_stride + head * dim;
  float sum = 0.0f;
  for (int at = lane; at < dim; at += kWarp) {
    const float value = __half2float(own[at]);
    sum += value * value;
  }
  const float scale = rsqrtf(warp_sum(sum) / static_cast<float>(dim) + eps);
  for (int at = lane; at < dim; at += kWarp)
    to[at] = __float2half_rn(__half2float(own[at]) * scale * weight[at] * gdn::silu(__half2float(gate[at])));
}
