// RMSNorm and SwiGLU over rows.
#include <algorithm>

#include "cpu/kernels.h"
#include "op.h"
#include "pool.h"

namespace {

struct RmsNormArgs {
  const float* x;
  const float* weight;
  float* out;
  int64_t t, h, x_stride, out_stride;
  double eps;
};

struct SiluMulArgs {
  const float* gate_up;
  float* out;
  int64_t m, i, in_stride, out_stride;
};

// Rows of `width` elements a chunk: about 16 K elements, so that a decode step's few rows stay on the calling thread.
template <class Row>
void for_rows(int64_t rows, int64_t width, Row&& row) {
  const int64_t chunk_rows = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, width));
  sm70::parallel_for((rows + chunk_rows - 1) / chunk_rows, [&](int64_t chunk) {
    for (int64_t r = chunk * chunk_rows; r < std::min(rows, (chunk + 1) * chunk_rows); ++r) row(r);
  });
}

}  // namespace

SM70_OP(rms_norm_cpu, 1, RmsNormArgs) {
  const RmsNormArgs& a = *args;
  for_rows(a.t, a.h, [&](int64_t r) {
    sm70::kernels().rms_norm_row(a.x + r * a.x_stride, a.weight, a.h, static_cast<float>(a.eps),
                                 a.out + r * a.out_stride);
  });
  return sm70::kOk;
}

SM70_OP(silu_mul_cpu, 1, SiluMulArgs) {
  const SiluMulArgs& a = *args;
  for_rows(a.m, a.i, [&](int64_t r) {
    const float* gate = a.gate_up + r * a.in_stride;
    sm70::kernels().silu_mul_row(gate, gate + a.i, a.i, a.out + r * a.out_stride);
  });
  return sm70::kOk;
}
