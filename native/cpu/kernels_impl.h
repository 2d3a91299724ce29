// Fills one table; included by kernels_<isa>.cpp, which names it SM70_KERNELS and includes its simd header first.
#include "cpu/attention_kernels.h"
#include "cpu/half.h"
#include "cpu/kernels.h"
#include "cpu/linear_kernels.h"
#include "cpu/norm_kernels.h"

namespace sm70 {

const Kernels SM70_KERNELS = {
    .to_fixed_point = to_fixed_point,
    .q4_1_panels = q4_1_panels,
    .q8_0_panels = q8_0_panels,
    .dense_row = dense_row,
    .q8_0_row = q8_0_row,
    .rms_norm_row = rms_norm_row,
    .silu_mul_row = silu_mul_row,
    .rotate_head = rotate_head,
    .floats_to_kv = floats_to_kv,
    .attend_partition = attend_partition,
    .merge_partition = merge_partition,
    .finish_row = finish_row,
    .halves_to_floats = halves_to_floats,
    .floats_to_halves = floats_to_halves,
};

}  // namespace sm70
