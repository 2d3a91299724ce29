// Fills one table; included by kernels_<isa>.cpp, which names it SM70_KERNELS and includes its simd header first.
#include "cpu/attention_kernels.h"
#include "cpu/gdn_kernels.h"
#include "cpu/half.h"
#include "cpu/kernels.h"
#include "cpu/linear_kernels.h"
#include "cpu/norm_kernels.h"
#include "cpu/packed_kernels.h"

namespace sm70 {

const Kernels SM70_KERNELS = {
    .to_fixed_point = to_fixed_point,
    .q4_1_panels = q4_1_panels,
    .q8_0_panels = q8_0_panels,
    .int4_tile = packed_tile<Int4>,
    .nvfp4_tile = packed_tile<Nvfp4>,
    .nvfp4_small_tile = packed_tile<Nvfp4, 8>,
    .dense_row_f32 = dense_row<float>,
    .dense_row_f16 = dense_row<uint16_t>,
    .q8_0_row = q8_0_row,
    .rms_norm_row = rms_norm_row,
    .silu_mul_row = silu_mul_row,
    .rotate_head = rotate_head,
    .floats_to_kv = floats_to_kv,
    .kv_to_floats = kv_to_floats,
    .attend_partition = attend_partition,
    .merge_partition = merge_partition,
    .finish_row = finish_row,
    .gdn_conv_row = gdn_conv_row,
    .gdn_gates_row = gdn_gates_row,
    .gdn_normalize = gdn_normalize,
    .gdn_step = gdn_step,
    .gdn_chunk = gdn_chunk,
    .gdn_gated_rms_norm_row = gdn_gated_rms_norm_row,
    .halves_to_floats = halves_to_floats,
    .floats_to_halves = floats_to_halves,
};

}  // namespace sm70
