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

struct Kernels {
  // One row of activations, x[0 .. k - 1], to row `row` of `to`.
  void (*to_fixed_point)(const float* x, int64_t row, const FixedPoint& to);
  // `panels` neighbouring panels of quantised weights times rows first_row .. first_row + rows - 1.
  void (*q4_1_panels)(const uint8_t* tiles, int64_t panels, const FixedPoint& x, int64_t first_row, int64_t rows,
                      PanelOutput output);
  void (*q8_0_panels)(const uint8_t* tiles, int64_t panels, const FixedPoint& x, int64_t first_row, int64_t rows,
                      PanelOutput output);
  // One row of dense weights times `rows` rows of x.
  void (*dense_row)(const float* weight, const float* x, int64_t x_stride, int64_t rows, int64_t k,
                    const float* residual, int64_t residual_stride, float* out, int64_t out_stride);
  // One row of Q8_0 tiles to float.
  void (*q8_0_row)(const uint8_t* panel, int64_t lane, int64_t groups, float* out);

  void (*rms_norm_row)(const float* x, const float* weight, int64_t h, float eps, float* out);
  void (*silu_mul_row)(const float* gate, const float* up, int64_t count, float* out);
  void (*rotate_head)(const float* from, const float* cos_sin, int64_t half, int64_t head_dim, bool interleaved,
                      float* to);
  void (*floats_to_kv)(int64_t kv_code, const float* from, int64_t count, void* to);
  void (*attend_partition)(const AttentionTile& tile);
  void (*merge_partition)(float maximum, float total, const float* out, int64_t head_dim, AttentionRow* row);
  // out = row.out / row.total; zeros where the row saw no key.
  void (*finish_row)(const AttentionRow& row, int64_t head_dim, float* out);

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
