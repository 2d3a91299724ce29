// The delta rule of Gated DeltaNet, token by token or in chunks. Work is shared by sequence and value head.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "cpu/gdn_slots.h"
#include "cpu/kernels.h"
#include "cpu/scratch.h"
#include "op.h"
#include "pool.h"

namespace {

using sm70::kGdnChunk;

struct GdnArgs {
  const float* q;
  const float* k;
  const float* v;
  const float* log_decay;
  const float* beta;
  float* state;  // [states, value_heads, value_dim, key_dim]
  float* out;
  int64_t key_heads, value_heads, key_dim, value_dim, q_stride, k_stride, v_stride, out_stride;
  sm70::GdnSlots slots;

  int64_t head_floats() const { return value_dim * key_dim; }
  float* head_state(int64_t slot, int64_t head) const { return state + (slot * value_heads + head) * head_floats(); }
  int64_t key_head(int64_t head) const { return head / (value_heads / key_heads); }
};

// One value head of one sequence, working on a copy of its state.
struct Head {
  const GdnArgs& a;
  int64_t index;
  sm70::GdnHead state;

  void normalized(const float* rows, int64_t stride, int64_t t, float factor, float* to) const {
    sm70::kernels().gdn_normalize(rows + t * stride + a.key_head(index) * a.key_dim, a.key_dim, factor, to);
  }
  void query(int64_t t, float* to) const {
    normalized(a.q, a.q_stride, t, 1.0f / std::sqrt(static_cast<float>(a.key_dim)), to);
  }
  void key(int64_t t, float* to) const { normalized(a.k, a.k_stride, t, 1.0f, to); }
  const float* value(int64_t t) const { return a.v + t * a.v_stride + index * a.value_dim; }
  float* out(int64_t t) const { return a.out + t * a.out_stride + index * a.value_dim; }
  float gate(const float* gates, int64_t t) const { return gates[t * a.value_heads + index]; }
  void keep(int64_t t) const {
    if (a.slots.slots[t] >= 0)
      std::memcpy(a.head_state(a.slots.slots[t], index), state.state,
                  static_cast<std::size_t>(a.head_floats()) * sizeof(float));
  }
};

void step_by_step(const Head& head, int64_t first, int64_t last, float* room) {
  float *const q = room, *const k = room + head.a.key_dim;
  for (int64_t t = first; t < last; ++t) {
    head.query(t, q);
    head.key(t, k);
    sm70::kernels().gdn_step(head.state, q, k, head.value(t), head.gate(head.a.log_decay, t), head.gate(head.a.beta, t),
                             head.out(t));
    head.keep(t);
  }
}

void in_chunks(const Head& head, int64_t first, int64_t last, float* room) {
  const int64_t keys = head.a.key_dim;
  float *const q = room, *const k = q + kGdnChunk * keys, *const w = k + kGdnChunk * keys,
               *const u = w + kGdnChunk * keys;
  float log_decay[kGdnChunk], beta[kGdnChunk];
  const float* v[kGdnChunk];
  float* out[kGdnChunk];
  for (int64_t start = first; start < last; start += kGdnChunk) {
    const int64_t tokens = std::min(kGdnChunk, last - start);
    for (int64_t i = 0; i < tokens; ++i) {
      head.query(start + i, q + i * keys);
      head.key(start + i, k + i * keys);
      log_decay[i] = head.gate(head.a.log_decay, start + i);
      beta[i] = head.gate(head.a.beta, start + i);
      v[i] = head.value(start + i);
      out[i] = head.out(start + i);
    }
    sm70::kernels().gdn_chunk(head.state, {tokens, q, k, v, log_decay, beta, w, u, out});
  }
  if (last > first) head.keep(last - 1);
}

void zero_rows(const GdnArgs& a, int64_t head, int64_t first, int64_t last) {
  for (int64_t t = first; t < last; ++t)
    std::memset(a.out + t * a.out_stride + head * a.value_dim, 0,
                static_cast<std::size_t>(a.value_dim) * sizeof(float));
}

int run(const GdnArgs& a, bool chunked) {
  if (const int status = a.slots.check(chunked)) return status;
  // A copy of the state, then the rows of a chunk (k, q, w; u) or of a token.
  const int64_t floats = a.head_floats() + kGdnChunk * (3 * a.key_dim + a.value_dim);
  std::atomic<bool> memory{true};
  sm70::parallel_for(a.slots.batch * a.value_heads, [&](int64_t chunk) {
    const int64_t sequence = chunk / a.value_heads, index = chunk % a.value_heads;
    const int64_t first = a.slots.query_start[sequence], last = a.slots.query_start[sequence + 1];
    const int64_t initial = a.slots.initial_slots[sequence];
    if (initial < 0) return zero_rows(a, index, first, last);
    static thread_local sm70::Scratch scratch;
    float* const state = reinterpret_cast<float*>(scratch.take(static_cast<std::size_t>(floats) * sizeof(float)));
    if (state == nullptr) {
      memory = false;
      return;
    }
    std::memcpy(state, a.head_state(initial, index), static_cast<std::size_t>(a.head_floats()) * sizeof(float));
    const Head head{a, index, {state, a.key_dim, a.value_dim}};
    (chunked ? in_chunks : step_by_step)(head, first, last, state + a.head_floats());
  });
  if (!memory) return sm70::fail(sm70::kFailed, "gdn: no memory for %lld floats", static_cast<long long>(floats));
  return sm70::kOk;
}

}  // namespace

SM70_OP(gdn_recurrent_cpu, 1, GdnArgs) { return run(*args, false); }
SM70_OP(gdn_chunk_cpu, 1, GdnArgs) { return run(*args, true); }
