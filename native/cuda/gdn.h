// Arguments of the Gated DeltaNet kernels; every field is eight bytes wide (see paged_attention.h).
//
// State slots: a sequence starts from slot initial_slots[b] and, after its token t, leaves its state in slot slots[t];
// so a speculative round keeps one state for each drafted position. -1 in slots: not kept. -1 in initial_slots:
// padding; nothing is read or written and the rows of out are zero. A fresh sequence starts from a slot that holds
// zeros. The initial slot may be among the slots written.
#ifndef SM70_CUDA_GDN_H_
#define SM70_CUDA_GDN_H_

#ifndef __CUDACC_RTC__
#include <cstdint>
#endif

struct GdnConvArgs {
  const void* x;              // FP16 [T, C]
  const void* weight;         // FP32 [C, 4]
  void* state;                // FP16 [S, 3, C], oldest row first
  const void* initial_slots;  // int32 [B]
  const void* slots;          // int32 [T]
  const void* query_start;    // int32 [B + 1]
  void* out;                  // FP16 [T, C]
  void* fault;                // int32 [4], see faults.h
  int64_t tokens;
  int64_t batch;
  int64_t channels;
  int64_t states;
  int64_t x_stride;  // strides in elements
  int64_t out_stride;
};

struct GdnArgs {
  const void* q;              // FP16 [T, Hk, dk], not normalised
  const void* k;              // the same
  const void* v;              // FP16 [T, Hv, dv]
  const void* log_decay;      // FP32 [T, Hv]
  const void* beta;           // FP32 [T, Hv]
  void* state;                // FP32 [S, Hv, dv, dk]
  const void* initial_slots;  // int32 [B]
  const void* slots;          // int32 [T]
  const void* query_start;    // int32 [B + 1]
  void* out;                  // FP16 [T, Hv, dv]
  void* fault;                // int32 [4], see faults.h
  // Chunked form only, one a chunk and value head; chunks of a sequence lie together, sequences in order.
  void* w;        // FP32 [chunks, Hv, 64, dk]
  void* u;        // FP32 [chunks, Hv, 64, dv]
  void* p;        // FP32 [chunks, Hv, 64, 64]
  void* factors;  // FP32 [chunks, Hv, 64, 2]: of the rows of q and of k
  void* decays;   // FP32 [chunks, Hv]: of the state over the chunk
  int64_t tokens;
  int64_t batch;
  int64_t key_heads;
  int64_t value_heads;
  int64_t key_dim;
  int64_t value_dim;
  int64_t states;
  int64_t q_token_stride;  // strides in elements
  int64_t k_token_stride;
  int64_t v_token_stride;
  int64_t out_token_stride;
  int64_t chunks;  // capacity of the chunk arrays
};

constexpr int kGdnChunk = 64;
// Only the last tokens of a sequence may keep a state: as many as a round can have drafted.
constexpr int kGdnKept = 64;

#endif  // SM70_CUDA_GDN_H_
