// Writes keys and values to their cache slots: as they are, or after rotating queries and keys.
#include <algorithm>

#include "cpu/kernels.h"
#include "cpu/paged_cache.h"
#include "op.h"
#include "pool.h"

namespace {

// Where a token's key and value go.
struct CacheArgs {
  void* k_cache;
  void* v_cache;
  const int64_t* slots;
  int64_t kv_heads, head_dim, kv_code, num_blocks, block_size;
  int64_t k_strides[3], v_strides[3];
  double k_scale, v_scale;
};

struct StoreKvArgs {
  const float* k;
  const float* v;
  int64_t t;
  int64_t k_strides[2], v_strides[2];  // of token and head
  CacheArgs cache;
};

struct RopeStoreKvArgs {
  const float* qkv;
  const float* cos_sin;
  const int32_t* positions;
  float* q_out;
  int64_t t, q_heads, half, table_rows, interleaved, qkv_stride;
  CacheArgs cache;
};

constexpr int64_t kMaxHeadDim = 256;  // Python checks
constexpr int64_t kChunkTokens = 16;  // a decode step's few tokens stay on the calling thread

int check_slots(const CacheArgs& cache, int64_t tokens) {
  const auto ll = [](int64_t v) { return static_cast<long long>(v); };
  const int64_t slots = cache.num_blocks * cache.block_size;
  for (int64_t t = 0; t < tokens; ++t)
    if (cache.slots[t] < -1 || cache.slots[t] >= slots)
      return sm70::fail(sm70::kBadValue,
                        "slot_mapping[%lld] is %lld, allowed -1..%lld: the cache has %lld blocks of %lld", ll(t),
                        ll(cache.slots[t]), ll(slots - 1), ll(cache.num_blocks), ll(cache.block_size));
  return sm70::kOk;
}

int check_positions(const RopeStoreKvArgs& a) {
  for (int64_t t = 0; t < a.t; ++t)
    if (a.positions[t] < 0 || a.positions[t] >= a.table_rows)
      return sm70::fail(sm70::kBadValue, "positions[%lld] is %d, allowed 0..%lld: the rotary table has no more rows",
                        static_cast<long long>(t), a.positions[t], static_cast<long long>(a.table_rows - 1));
  return sm70::kOk;
}

void store_row(const CacheArgs& cache, int64_t t, int64_t head, bool key, const float* from) {
  const int64_t block = cache.slots[t] / cache.block_size, offset = cache.slots[t] % cache.block_size;
  const sm70::PagedCache rows{static_cast<char*>(key ? cache.k_cache : cache.v_cache),
                              sm70::kv_element_bytes(cache.kv_code), key ? cache.k_strides : cache.v_strides};
  sm70::kernels().floats_to_kv(cache.kv_code, from, static_cast<float>(key ? cache.k_scale : cache.v_scale),
                               cache.head_dim, rows.row(block, offset, head));
}

void rotate_and_store(const RopeStoreKvArgs& a, int64_t t) {
  const CacheArgs& cache = a.cache;
  const float* token = a.qkv + t * a.qkv_stride;
  const float* cos_sin = a.cos_sin + static_cast<int64_t>(a.positions[t]) * a.half * 2;
  const auto rotate = [&](int64_t head, float* to) {
    sm70::kernels().rotate_head(token + head * cache.head_dim, cos_sin, a.half, cache.head_dim, a.interleaved != 0, to);
  };
  for (int64_t head = 0; head < a.q_heads; ++head) rotate(head, a.q_out + (t * a.q_heads + head) * cache.head_dim);
  if (cache.slots[t] < 0) return;
  for (int64_t head = 0; head < cache.kv_heads; ++head) {
    float rotated[kMaxHeadDim];
    rotate(a.q_heads + head, rotated);
    store_row(cache, t, head, true, rotated);
    store_row(cache, t, head, false, token + (a.q_heads + cache.kv_heads + head) * cache.head_dim);
  }
}

template <class Token>
void for_tokens(int64_t tokens, const Token& token) {
  sm70::parallel_for((tokens + kChunkTokens - 1) / kChunkTokens, [&](int64_t chunk) {
    for (int64_t t = chunk * kChunkTokens; t < std::min(tokens, (chunk + 1) * kChunkTokens); ++t) token(t);
  });
}

}  // namespace

SM70_OP(store_kv_cpu, 1, StoreKvArgs) {
  const StoreKvArgs& a = *args;
  if (const int status = check_slots(a.cache, a.t)) return status;
  for_tokens(a.t, [&](int64_t t) {
    if (a.cache.slots[t] < 0) return;
    for (int64_t head = 0; head < a.cache.kv_heads; ++head) {
      store_row(a.cache, t, head, true, a.k + t * a.k_strides[0] + head * a.k_strides[1]);
      store_row(a.cache, t, head, false, a.v + t * a.v_strides[0] + head * a.v_strides[1]);
    }
  });
  return sm70::kOk;
}

SM70_OP(rope_store_kv_cpu, 2, RopeStoreKvArgs) {
  if (const int status = check_positions(*args)) return status;
  if (const int status = check_slots(args->cache, args->t)) return status;
  for_tokens(args->t, [&](int64_t t) { rotate_and_store(*args, t); });
  return sm70::kOk;
}
