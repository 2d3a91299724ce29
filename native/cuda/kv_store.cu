// Writes keys and values into the paged cache, with or without rotating queries and keys first.
#include "device.cuh"
#include "fp8.cuh"
#include "kv_store.h"

namespace {

constexpr int kThreads = 128;  // one a pair of elements: head dimensions up to 256

struct Pair {
  __half a, b;
};

// Elements (i, j) of a head's row, rotated in FP32 and rounded once.
__device__ Pair rotate(const __half* row, int i, int j, float cosine, float sine) {
  const float a = __half2float(row[i]), b = __half2float(row[j]);
  return {__float2half_rn(a * cosine - b * sine), __float2half_rn(b * cosine + a * sine)};
}

// Where pair `p` of a head lies, and whether it turns.
struct Place {
  int i, j;
  bool turns;
  __device__ Place(const KvStoreArgs& args, int p, bool rotated) {
    const int half = rotated ? static_cast<int>(args.rotary / 2) : 0;
    turns = p < half;
    const bool apart = turns && args.interleaved == 0;
    i = apart ? p : 2 * p;
    j = apart ? p + half : 2 * p + 1;
  }
};

__device__ void put(void* cache, int64_t offset, __half value, const KvStoreArgs& args, double scale) {
  if (args.kv_format == 0) {
    static_cast<__half*>(cache)[offset] = value;
    return;
  }
  const float scaled = __fdiv_rn(__half2float(value), static_cast<float>(scale));
  static_cast<unsigned char*>(cache)[offset] = args.kv_format == 1 ? E4M3::encode(scaled) : E5M2::encode(scaled);
}

}  // namespace

// Grid: tokens, heads (queries, then keys, then values). A bad position or slot writes nothing but a fault.
SM70_KERNEL((kThreads), kv_store, KvStoreArgs args) {
  const int64_t token = blockIdx.x;
  const int query_heads = args.q == nullptr ? 0 : static_cast<int>(args.query_heads);
  const int kv_heads = static_cast<int>(args.kv_heads);
  const int head = blockIdx.y;
  const int p = threadIdx.x;
  if (2 * p >= args.head_dim) return;
  int* fault = static_cast<int*>(args.fault);

  const bool is_query = head < query_heads;
  const bool is_value = head >= query_heads + kv_heads;
  const int own_head = is_query ? head : is_value ? head - query_heads - kv_heads : head - query_heads;
  const bool rotated = args.cos_sin != nullptr && !is_value;
  const Place place(args, p, rotated);

  float cosine = 1.0f, sine = 0.0f;
  if (place.turns) {
    const int position = static_cast<const int*>(args.position)[token];
    if (position < 0 || position >= args.positions) {
      report_fault(fault, kFaultPosition, token, 0, position);
      return;
    }
    const float2 turn = static_cast<const float2*>(args.cos_sin)[position * (args.rotary / 2) + p];
    cosine = turn.x;
    sine = turn.y;
  }

  const __half* row =
      is_query   ? static_cast<const __half*>(args.q) + token * args.q_token_stride + own_head * args.q_head_stride
      : is_value ? static_cast<const __half*>(args.v) + token * args.v_token_stride + own_head * args.v_head_stride
                 : static_cast<const __half*>(args.k) + token * args.k_token_stride + own_head * args.k_head_stride;
  // A pair that does not turn is copied, not multiplied by one: an infinity stays an infinity.
  const Pair pair = place.turns ? rotate(row, place.i, place.j, cosine, sine) : Pair{row[place.i], row[place.j]};

  if (is_query) {
    __half* out =
        static_cast<__half*>(args.q_out) + token * args.q_out_token_stride + own_head * args.q_out_head_stride;
    out[place.i] = pair.a;
    out[place.j] = pair.b;
    return;
  }
  const int64_t slot = static_cast<const int64_t*>(args.slot_mapping)[token];
  if (slot == -1) return;
  if (slot < 0 || slot >= args.num_blocks * args.block_size) {
    report_fault(fault, kFaultSlot, token, 0, slot);
    return;
  }
  const int64_t block = slot / args.block_size, in_block = slot % args.block_size;
  if (is_value) {
    const int64_t at =
        block * args.v_cache_block_stride + in_block * args.v_cache_token_stride + own_head * args.v_cache_head_stride;
    put(args.v_cache, at + place.i, pair.a, args, args.v_scale);
    put(args.v_cache, at + place.j, pair.b, args, args.v_scale);
  } else {
    const int64_t at =
        block * args.k_cache_block_stride + in_block * args.k_cache_token_stride + own_head * args.k_cache_head_stride;
    put(args.k_cache, at + place.i, pair.a, args, args.k_scale);
    put(args.k_cache, at + place.j, pair.b, args, args.k_scale);
  }
}
