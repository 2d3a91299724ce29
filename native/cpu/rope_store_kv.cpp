// Rotates queries and keys, writes keys and values to their slots.
#include <algorithm>

#include "cpu/kernels.h"
#include "cpu/paged_cache.h"
#include "op.h"
#include "pool.h"

namespace {

struct RopeStoreKvArgs {
  const float* qkv;
  const float* cos_sin;
  const int32_t* positions;
  void* k_cache;
  void* v_cache;
  const int64_t* slots;
  float* q_out;
  int64_t t, q_heads, kv_heads, head_dim, half, table_rows, interleaved, qkv_stride, kv_code, num_blocks, block_size;
  int64_t k_strides[3], v_strides[3];
};

constexpr int64_t kMaxHeadDim = 256;  // Python checks

int check(const RopeStoreKvArgs& a) {
  const int64_t slots = a.num_blocks * a.block_size;
  for (int64_t t = 0; t < a.t; ++t) {
    if (a.positions[t] < 0 || a.positions[t] >= a.table_rows)
      return sm70::fail(sm70::kBadValue, "positions[%lld] is %d, allowed 0..%lld: the rotary table has no more rows",
                        static_cast<long long>(t), a.positions[t], static_cast<long long>(a.table_rows - 1));
    if (a.slots[t] < -1 || a.slots[t] >= slots)
      return sm70::fail(
          sm70::kBadValue, "slot_mapping[%lld] is %lld, allowed -1..%lld: the cache has %lld blocks of %lld",
          static_cast<long long>(t), static_cast<long long>(a.slots[t]), static_cast<long long>(slots - 1),
          static_cast<long long>(a.num_blocks), static_cast<long long>(a.block_size));
  }
  return sm70::kOk;
}

void rotate_and_store(const RopeStoreKvArgs& a, int64_t t) {
  const sm70::Kernels& kernels = sm70::kernels();
  const float* token = a.qkv + t * a.qkv_stride;
  const float* cos_sin = a.cos_sin + static_cast<int64_t>(a.positions[t]) * a.half * 2;
  const auto rotate = [&](int64_t head, float* to) {
    kernels.rotate_head(token + head * a.head_dim, cos_sin, a.half, a.head_dim, a.interleaved != 0, to);
  };
  for (int64_t head = 0; head < a.q_heads; ++head) rotate(head, a.q_out + (t * a.q_heads + head) * a.head_dim);
  if (a.slots[t] < 0) return;
  const int64_t block = a.slots[t] / a.block_size, offset = a.slots[t] % a.block_size;
  const int64_t bytes = sm70::kv_element_bytes(a.kv_code);
  const sm70::PagedCache k{static_cast<char*>(a.k_cache), bytes, a.k_strides};
  const sm70::PagedCache v{static_cast<char*>(a.v_cache), bytes, a.v_strides};
  for (int64_t head = 0; head < a.kv_heads; ++head) {
    float rotated[kMaxHeadDim];
    rotate(a.q_heads + head, rotated);
    kernels.floats_to_kv(a.kv_code, rotated, a.head_dim, k.row(block, offset, head));
    kernels.floats_to_kv(a.kv_code, token + (a.q_heads + a.kv_heads + head) * a.head_dim, a.head_dim,
                         v.row(block, offset, head));
  }
}

}  // namespace

SM70_OP(rope_store_kv_cpu, 1, RopeStoreKvArgs) {
  if (const int status = check(*args)) return status;
  constexpr int64_t kChunkTokens = 16;  // a decode step's few tokens stay on the calling thread
  sm70::parallel_for((args->t + kChunkTokens - 1) / kChunkTokens, [&](int64_t chunk) {
    for (int64_t t = chunk * kChunkTokens; t < std::min(args->t, (chunk + 1) * kChunkTokens); ++t)
      rotate_and_store(*args, t);
  });
  return sm70::kOk;
}
