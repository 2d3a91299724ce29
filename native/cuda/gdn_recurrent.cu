// The delta rule token by token, FP32: S <- decay S; d = beta (v - S k); S <- S + d k^T; out = S q, with q and k
// L2-normed and q times dk^-1/2.
#include "gdn.cuh"

namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kLanes = 4;  // threads that share a row of the state
constexpr int kRows = kThreads / kLanes;
constexpr int kMaxDim = 128;                      // of a key
constexpr int kVectors = kMaxDim / (4 * kLanes);  // float4 of a row in one thread
constexpr int kLoads = kMaxDim / kWarp;           // elements of a key in one lane

// q and k of one token as a lane holds them: elements lane, lane + 32, ...
struct Keys {
  __half q[kLoads], k[kLoads];
};

__device__ void load(const GdnArgs& args, int64_t token, int64_t head, Keys& keys) {
  const int lane = threadIdx.x % kWarp;
  const __half* q = static_cast<const __half*>(args.q) + token * args.q_token_stride + head * args.key_dim;
  const __half* k = static_cast<const __half*>(args.k) + token * args.k_token_stride + head * args.key_dim;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int at = lane + i * kWarp;
    keys.q[i] = at < args.key_dim ? q[at] : __float2half_rn(0.0f);
    keys.k[i] = at < args.key_dim ? k[at] : __float2half_rn(0.0f);
  }
}

// x / sqrt(sum x^2 + eps) * factor, to shared memory.
__device__ void normalise(const __half (&values)[kLoads], float factor, float* to) {
  const int lane = threadIdx.x % kWarp;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const float value = __half2float(values[i]);
    sum += value * value;
  }
  const float scale = factor / sqrtf(warp_sum(sum) + gdn::kNormEps);
#pragma unroll
  for (int i = 0; i < kLoads; ++i) to[lane + i * kWarp] = __half2float(values[i]) * scale;
}

__device__ float lanes_sum(float value) {
  value += __shfl_xor_sync(kFullMask, value, 1);
  value += __shfl_xor_sync(kFullMask, value, 2);
  return value;
}

}  // namespace

// Grid: blocks of 32 rows of the state, value heads, sequences. A warp keeps its own copy of q and k, so warps never
// wait for each other.
SM70_KERNEL((kThreads), gdn_recurrent, GdnArgs args) {
  __shared__ float4 q_shared[kWarps][kMaxDim / 4];
  __shared__ float4 k_shared[kWarps][kMaxDim / 4];
  const int warp = threadIdx.x / kWarp;
  const int row = blockIdx.x * kRows + threadIdx.x / kLanes;
  const int part = threadIdx.x % kLanes;
  const int64_t head = blockIdx.y;
  const int64_t key_head = head / (args.value_heads / args.key_heads);
  const int64_t sequence = blockIdx.z;
  const gdn::Range range(args.query_start, sequence, args.tokens);
  const bool live = row < args.value_dim;
  const int vectors = static_cast<int>(args.key_dim / 4);
  const int64_t first = gdn::checked_slot(args.initial_slots, sequence, args.states, args.fault, sequence, -1);

  // Row `row` of a slot's state; this thread's float4 are part, part + 4, ...
  const auto state_row = [&](int64_t slot) {
    return reinterpret_cast<float4*>(static_cast<float*>(args.state) +
                                     ((slot * args.value_heads + head) * args.value_dim + row) * args.key_dim);
  };
  float4 state[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    state[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (live && first >= 0 && part + kLanes * i < vectors) state[i] = state_row(first)[part + kLanes * i];
  }

  const float query_factor = 1.0f / sqrtf(static_cast<float>(args.key_dim));
  const int64_t value_at = head * args.value_dim + row;
  Keys keys;
  float value = 0.0f;
  if (range.size() > 0) {
    load(args, range.begin, key_head, keys);
    if (live) value = __half2float(static_cast<const __half*>(args.v)[range.begin * args.v_token_stride + value_at]);
  }
  for (int64_t token = range.begin; token < range.end; ++token) {
    __syncwarp();
    normalise(keys.q, query_factor, reinterpret_cast<float*>(q_shared[warp]));
    normalise(keys.k, 1.0f, reinterpret_cast<float*>(k_shared[warp]));
    __syncwarp();
    const float own_value = value;
    if (token + 1 < range.end) {
      load(args, token + 1, key_head, keys);
      if (live) value = __half2float(static_cast<const __half*>(args.v)[(token + 1) * args.v_token_stride + value_at]);
    }
    const float decay = expf(static_cast<const float*>(args.log_decay)[token * args.value_heads + head]);
    const float beta = static_cast<const float*>(args.beta)[token * args.value_heads + head];

    float read = 0.0f;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const float4 k = k_shared[warp][part + kLanes * i];
      state[i].x *= decay, state[i].y *= decay, state[i].z *= decay, state[i].w *= decay;
      read += state[i].x * k.x;
      read += state[i].y * k.y;
      read += state[i].z * k.z;
      read += state[i].w * k.w;
    }
    const float delta = beta * (own_value - lanes_sum(read));
    float result = 0.0f;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const float4 k = k_shared[warp][part + kLanes * i];
      const float4 q = q_shared[warp][part + kLanes * i];
      state[i].x += delta * k.x, state[i].y += delta * k.y, state[i].z += delta * k.z, state[i].w += delta * k.w;
      result += state[i].x * q.x;
      result += state[i].y * q.y;
      result += state[i].z * q.z;
      result += state[i].w * q.w;
    }
    result = lanes_sum(result);
    if (!live) continue;
    if (part == 0)
      static_cast<__half*>(args.out)[token * args.out_token_stride + value_at] =
          __float2half_rn(first >= 0 ? result : 0.0f);
    const int64_t slot =
        first < 0 ? -1 : gdn::checked_slot(args.slots, token, args.states, args.fault, sequence, token - range.begin);
    if (slot < 0) continue;
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      if (part + kLanes * i < vectors) state_row(slot)[part + kLanes * i] = state[i];
  }
}
