// Linear layers: out[m, n] = sum over k of x[m, k] * weight[n, k] (+ residual[m, n]).
#include <algorithm>

#include "cpu/kernels.h"
#include "cpu/scratch.h"
#include "op.h"
#include "pool.h"

namespace {

using sm70::FixedPoint;

struct LinearArgs {
  const float* x;
  const void* weight;
  const float* residual;
  float* out;
  int64_t m, n, k;
  int64_t x_stride, residual_stride, out_stride;
};

constexpr int64_t kPanel = 16;
// Panels a chunk: long runs through memory, yet about four chunks a thread to even out what else the machine does.
constexpr int64_t kMaxChunkPanels = 16;
int64_t chunk_panels(int64_t panels) {
  return std::clamp<int64_t>(panels / (4 * sm70::thread_count()), 1, kMaxChunkPanels);
}
// Rows a chunk: their fixed-point form stays in the second-level cache beside the weights.
constexpr int64_t kChunkRows = 64;
// Below this many activations one thread converts them faster than the pool starts.
constexpr int64_t kSerialActivations = 8192;

using PanelKernel = decltype(sm70::Kernels::q4_1_panels);

// Room for the activations' fixed-point form, cut from the thread's scratch.
bool take_fixed_point(int64_t rows, int64_t k, FixedPoint* x) {
  static thread_local sm70::Scratch scratch;
  const int64_t groups = k / 32;
  const std::size_t code_bytes = static_cast<std::size_t>(rows * k) * sizeof(int16_t);
  const std::size_t group_bytes = (static_cast<std::size_t>(rows * groups) * 4 + 63) / 64 * 64;
  char* memory = scratch.take(code_bytes + 3 * group_bytes);
  if (memory == nullptr) return false;
  x->codes = reinterpret_cast<int16_t*>(memory);
  x->scales = reinterpret_cast<float*>(memory + code_bytes);
  x->sums = reinterpret_cast<float*>(memory + code_bytes + group_bytes);
  x->code_sums = reinterpret_cast<int32_t*>(memory + code_bytes + 2 * group_bytes);
  x->k = k;
  x->groups = groups;
  return true;
}

int quantised(const LinearArgs& a, int64_t tile_bytes, PanelKernel kernel) {
  if (a.m == 0) return sm70::kOk;
  FixedPoint x;
  if (!take_fixed_point(a.m, a.k, &x))
    return sm70::fail(sm70::kFailed, "linear: no memory for %lld x %lld activations", static_cast<long long>(a.m),
                      static_cast<long long>(a.k));
  const sm70::Kernels& kernels = sm70::kernels();
  const auto convert = [&](int64_t row) { kernels.to_fixed_point(a.x + row * a.x_stride, row, x); };
  if (a.m * a.k <= kSerialActivations)
    for (int64_t row = 0; row < a.m; ++row) convert(row);
  else
    sm70::parallel_for(a.m, convert);

  const uint8_t* tiles = static_cast<const uint8_t*>(a.weight);
  const int64_t panels = (a.n + kPanel - 1) / kPanel;
  const int64_t share = chunk_panels(panels);
  const int64_t panel_chunks = (panels + share - 1) / share;
  const int64_t row_chunks = (a.m + kChunkRows - 1) / kChunkRows;
  sm70::parallel_for(panel_chunks * row_chunks, [&](int64_t chunk) {
    const int64_t panel = chunk % panel_chunks * share;
    const int64_t row = chunk / panel_chunks * kChunkRows;
    const int64_t column = panel * kPanel;
    kernel(tiles + panel * x.groups * tile_bytes, std::min(share, panels - panel), x, row,
           std::min(kChunkRows, a.m - row),
           {a.out + row * a.out_stride + column,
            a.residual == nullptr ? nullptr : a.residual + row * a.residual_stride + column, a.out_stride,
            a.residual_stride, a.n - column});
  });
  return sm70::kOk;
}

}  // namespace

SM70_OP(linear_q4_1_cpu, 1, LinearArgs) { return quantised(*args, 320, sm70::kernels().q4_1_panels); }
SM70_OP(linear_q8_0_cpu, 1, LinearArgs) { return quantised(*args, 544, sm70::kernels().q8_0_panels); }

SM70_OP(linear_f32_cpu, 1, LinearArgs) {
  const LinearArgs& a = *args;
  const float* weight = static_cast<const float*>(a.weight);
  constexpr int64_t kColumns = 16;
  sm70::parallel_for((a.n + kColumns - 1) / kColumns, [&](int64_t chunk) {
    for (int64_t n = chunk * kColumns; n < std::min((chunk + 1) * kColumns, a.n); ++n)
      sm70::kernels().dense_row(weight + n * a.k, a.x, a.x_stride, a.m, a.k,
                                a.residual == nullptr ? nullptr : a.residual + n, a.residual_stride, a.out + n,
                                a.out_stride);
  });
  return sm70::kOk;
}
