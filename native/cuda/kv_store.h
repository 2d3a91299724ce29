// Arguments of the KV-cache writers; every field is eight bytes wide (see paged_attention.h).
#ifndef SM70_CUDA_KV_STORE_H_
#define SM70_CUDA_KV_STORE_H_

#ifndef __CUDACC_RTC__
#include <cstdint>
#endif

struct KvStoreArgs {
  const void* q;             // FP16 [T, Hq, D], or null: no queries
  const void* k;             // FP16 [T, Hkv, D]
  const void* v;             // the same
  const void* cos_sin;       // FP32 [positions, rotary / 2, 2], or null: keys are stored as they are
  const void* position;      // int32 [T]
  const void* slot_mapping;  // int64 [T], -1: not written
  void* q_out;               // FP16 [T, Hq, D]
  void* k_cache;             // [num_blocks, block_size, Hkv, D], FP16 or FP8 codes
  void* v_cache;             // the same
  void* fault;               // int32 [4], see faults.h
  int64_t tokens;
  int64_t query_heads;
  int64_t kv_heads;
  int64_t head_dim;
  int64_t rotary;     // leading dimensions that turn
  int64_t positions;  // rows of cos_sin
  int64_t num_blocks;
  int64_t block_size;
  int64_t q_token_stride;  // strides in elements
  int64_t q_head_stride;
  int64_t k_token_stride;
  int64_t k_head_stride;
  int64_t v_token_stride;
  int64_t v_head_stride;
  int64_t q_out_token_stride;
  int64_t q_out_head_stride;
  int64_t k_cache_block_stride;
  int64_t k_cache_token_stride;
  int64_t k_cache_head_stride;
  int64_t v_cache_block_stride;
  int64_t v_cache_token_stride;
  int64_t v_cache_head_stride;
  int64_t interleaved;  // pairs (2 i, 2 i + 1), else (i, i + rotary / 2)
  int64_t kv_format;    // 0 FP16, 1 E4M3, 2 E5M2
  double k_scale;       // what is stored is key / k_scale
  double v_scale;
};

#endif  // SM70_CUDA_KV_STORE_H_
