// Arguments of the paged-attention kernels: one record that Python fills, the launcher reads and the kernels receive by
// value. Every field is eight bytes wide, so the three cannot disagree about padding.
#ifndef SM70_CUDA_PAGED_ATTENTION_H_
#define SM70_CUDA_PAGED_ATTENTION_H_

#ifndef __CUDACC_RTC__
#include <cstdint>
#endif

struct PagedAttentionArgs {
  const void* q;            // FP16 [T, Hq, D]
  const void* k;            // [num_blocks, block_size, Hkv, D], FP16 or FP8 codes
  const void* v;            // the same
  const void* block_table;  // int32 [B, max_blocks]
  const void* seq_lens;     // int32 [B]
  const void* query_start;  // int32 [B + 1]
  const void* anchor_lens;  // int32 [B], or null: no anchor
  void* out;                // FP16 [T, Hq, D]
  void* partial_out;        // FP32 [split rows, Hq, partitions, D]
  void* partial_stats;      // FP32 [split rows, Hq, partitions, 2]: maximum (base 2) and sum
  void* fault;              // int32 [4], see faults.h
  int64_t tokens;
  int64_t batch;
  int64_t query_heads;
  int64_t kv_heads;
  int64_t head_dim;
  int64_t num_blocks;
  int64_t block_size;
  int64_t max_blocks;
  int64_t table_stride;
  int64_t q_token_stride;  // strides in elements
  int64_t q_head_stride;
  int64_t out_token_stride;
  int64_t out_head_stride;
  int64_t k_block_stride;
  int64_t k_token_stride;
  int64_t k_head_stride;
  int64_t v_block_stride;
  int64_t v_token_stride;
  int64_t v_head_stride;
  int64_t partitions;  // most partitions of a sequence; the second-last dimension of partial_out
  int64_t chunk;       // least keys in a partition; more where `partitions` of them do not cover the sequence
  int64_t causal;
  int64_t window_left;   // -1: no limit
  int64_t window_right;  // -1: no limit
  int64_t anchored_window;
  double scale;       // of the scores, k_scale included
  double v_scale;     // of the output
  int64_t kv_format;  // 0 FP16, 1 E4M3, 2 E5M2
  int64_t row_tiles;  // 16-row tiles of a block: 1, 3 or 4
};

// Sequences of at most this many query rows are split into partitions along the keys; longer ones are not.
constexpr int kMaxSplitQueries = 64;

#endif  // SM70_CUDA_PAGED_ATTENTION_H_
