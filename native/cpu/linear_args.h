// What the linear ops share: the argument record and the activations' fixed-point form.
#ifndef SM70_CPU_LINEAR_ARGS_H_
#define SM70_CPU_LINEAR_ARGS_H_

#include <cstdint>

#include "cpu/kernels.h"

namespace sm70 {

struct LinearArgs {
  const float* x;
  const void* weight;
  const float* residual;
  float* out;
  int64_t m, n, k;
  int64_t x_stride, residual_stride, out_stride;

  // Where rows from `row` and columns from `column` go.
  PanelOutput output(int64_t row, int64_t column) const {
    return {out + row * out_stride + column, residual == nullptr ? nullptr : residual + row * residual_stride + column,
            out_stride, residual_stride, n - column};
  }
};

// Fills `to` with all rows of x, in memory that the calling thread keeps until its next call. A status: memory may
// lack.
int convert_activations(const LinearArgs& args, FixedPoint* to);

// Rows a chunk of work takes: their fixed-point form stays in the second-level cache beside the weights.
constexpr int64_t kChunkRows = 64;

}  // namespace sm70

#endif  // SM70_CPU_LINEAR_ARGS_H_
