// The inner loops of the CPU ops, once per instruction set, and the set in use.
//
// A table is filled by kernels_<isa>.cpp from the same templates (*_kernels.h over simd_<isa>.h). Sixteen lanes are the
// unit everywhere, so every table computes the same bits; only the speed differs.
#ifndef SM70_CPU_KERNELS_H_
#define SM70_CPU_KERNELS_H_

#include <cstdint>

namespace sm70 {

// Activations as 16-bit fixed point, a power-of-two scale for each group of 32 inputs: x = scale * code.
// Row m starts at codes + m * k and at m * groups of the others.
struct FixedPoint {
  int16_t* codes;
  float* scales;
  float* sums;         // scale * code_sum, exact
  int32_t* code_sums;  // sum of the group's codes
  int64_t k;
  int64_t groups;  // k / 32
};

// Where the products of some panels go.
struct PanelOutput {
  float* out;             // first row, first column of the first panel
  const float* residual;  // the same place of the residual, or null
  int64_t out_stride;
  int64_t residual_stride;
  int64_t columns;  // from there to the last column of the output
};

// A 4-bit weight in the SM70 packing: codes [tiles][k / 32][32 lanes][16 bytes]. Params are (scale, zero) halves
// [tiles][k / group][32][2] of int4, or E4M3 scales [tiles][k / 32][32][2] of NVFP4.
struct PackedWeight {
  const uint8_t* codes;
  const void* params;
  int64_t k;
  int64_t group;
  float global_scale;
};

// How a KV cache stores its numbers.
enum KvCode : int64_t { kKvFloat32 = 0, kKvFloat16 = 1, kKvE4M3 = 2, kKvE5M2 = 3 };

// Keys of a sequence are cut by position into partitions of this many; a multiple of 16.
constexpr int64_t kPartition = 256;

// Query rows of one KV head against one partition of keys. Key numbers count from the start of the partition.
struct AttentionTile {
  const float* q;  // [rows, head_dim], already multiplied by the scale
  int64_t rows;
  int64_t head_dim;  // a multiple of 16
  int64_t kv_code;
  const void* const* keys;  // rows of the cache by key number; only first_key .. last_key - 1 are read
  const void* const* values;
  int64_t first_key, last_key;
  const int64_t* begin;  // keys that each row sees: begin .. end - 1
  const int64_t* end;
  float* scores;       // [rows, kPartition]
  float* room;         // [16, head_dim]
  float* columns;      // [head_dim, 16]
  const float* zeros;  // [head_dim]
  float* maxima;       // [rows], written for rows that see a key
  float* totals;       // [rows], likewise
  float* out;          // [rows, head_dim]: weights times values, not divided by the total
};

// What a query row has gathered over partitions. Starts with maximum -inf, total 0 and out 0.
struct AttentionRow {
  float maximum;
  float total;
  float* out;  // [head_dim]
};

constexpr int kGdnTaps = 4;        // of the convolution
constexpr int64_t kGdnChunk = 64;  // tokens that the chunked form takes at once

// The recurrent state of one value head: [value_dim, key_dim].
struct GdnHead {
  float* state;
  int64_t key_dim, value_dim;
};

// Up to kGdnChunk tokens of one value head; q and k are normalised.
struct GdnChunk {
  int64_t tokens;
  const float* q;  // [tokens, key_dim]
  const float* k;
  const float* const* v;  // a row of value_dim a token
  const float* log_decay;
  const float* beta;
  float* w;  // room, [tokens, key_dim]
  float* u;  // room, [tokens, value_dim]
  float* const* out;
};

struct Kernels {
  // One row of activations, x[0 .. k - 1], to row `row` of `to`.
  void (*to_fixed_point)(const float* x, int64_t row, const FixedPoint& to);
  // `panels` neighbouring panels of quantised weights times rows first_row .. first_row + rows - 1.
  void (*q4_1_panels)(const uint8_t* tiles, int64_t panels, const FixedPoint& x, int64_t first_row, int64_t rows,
                      PanelOutput output);
  void (*q8_0_panels)(const uint8_t* tiles, int64_t panels, const FixedPoint& x, int64_t first_row, int64_t rows,
                      PanelOutput output);
  // One tile of 32 columns times rows first_row .. first_row + rows - 1.
  void (*int4_tile)(const PackedWeight& weight, int64_t tile, const FixedPoint& x, int64_t first_row, int64_t rows,
                    PanelOutput output);
  void (*nvfp4_tile)(const PackedWeight& weight, int64_t tile, const FixedPoint& x, int64_t first_row, int64_t rows,
                     PanelOutput output);
  void (*nvfp4_small_tile)(const PackedWeight& weight, int64_t tile, const FixedPoint& x, int64_t first_row,
                           int64_t rows, PanelOutput output);
  // One row of dense float32 or float16 weights times `rows` rows of x.
  void (*dense_row_f32)(const void* weight, const float* x, int64_t x_stride, int64_t rows, int64_t k,
                        const float* residual, int64_t residual_stride, float* out, int64_t out_stride);
  void (*dense_row_f16)(const void* weight, const float* x, int64_t x_stride, int64_t rows, int64_t k,
                        const float* residual, int64_t residual_stride, float* out, int64_t out_stride);
  // One row of Q8_0 tiles to float.
  void (*q8_0_row)(const uint8_t* panel, int64_t lane, int64_t groups, float* out);

  void (*rms_norm_row)(const float* x, const float* weight, int64_t h, float eps, float* out);
  void (*silu_mul_row)(const float* gate, const float* up, int64_t count, float* out);
  void (*rotate_head)(const float* from, const float* cos_sin, int64_t half, int64_t head_dim, bool interleaved,
                      float* to);
  // Codes of from / scale for an FP8 cache; `count` is a multiple of 16.
  void (*floats_to_kv)(int64_t kv_code, const float* from, float scale, int64_t count, void* to);
  void (*kv_to_floats)(int64_t kv_code, const void* from, int64_t count, float* to);
  void (*attend_partition)(const AttentionTile& tile);
  void (*merge_partition)(float maximum, float total, const float* out, int64_t head_dim, AttentionRow* row);
  // out = row.out / row.total; zeros where the row saw no key.
  void (*finish_row)(const AttentionRow& row, int64_t head_dim, float* out);

  void (*gdn_conv_row)(const float* const* rows, const float* weight, int64_t channels, float* out);
  void (*gdn_gates_row)(const float* a, const float* b, const float* a_log, const float* dt_bias, int64_t heads,
                        float* log_decay, float* beta);
  void (*gdn_normalize)(const float* x, int64_t count, float factor, float* out);
  void (*gdn_step)(const GdnHead& head, const float* q, const float* k, const float* v, float log_decay, float beta,
                   float* out);
  void (*gdn_chunk)(const GdnHead& head, const GdnChunk& chunk);
  void (*gdn_gated_rms_norm_row)(const float* x, const float* z, const float* weight, int64_t count, float eps,
                                 float* out);

  void (*halves_to_floats)(const uint16_t* from, int64_t count, float* to);
  void (*floats_to_halves)(const float* from, int64_t count, uint16_t* to);
};

extern const Kernels kKernelsPortable;
extern const Kernels kKernelsAvx2;
extern const Kernels kKernelsAvx512;

// The table in use.
const Kernels& kernels();

// 0 portable, 1 AVX2 + FMA + F16C, 2 AVX-512 (F, BW, DQ, VL). What is in use; the widest this machine has.
int isa();
int best_isa();

}  // namespace sm70

#endif  // SM70_CPU_KERNELS_H_
