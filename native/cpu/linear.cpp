// Linear layers over GGUF blocks: out[m, n] = sum over k of x[m, k] * weight[n, k] (+ residual[m, n]).
#include <algorithm>

#include "cpu/kernels.h"
#include "cpu/linear_args.h"
#include "cpu/scratch.h"
#include "op.h"
#include "pool.h"

namespace sm70 {
namespace {

constexpr int64_t kPanel = 16;
// Panels a chunk: long runs through memory, yet about four chunks a thread to even out what else the machine does.
constexpr int64_t kMaxChunkPanels = 16;
int64_t chunk_panels(int64_t panels) { return std::clamp<int64_t>(panels / (4 * thread_count()), 1, kMaxChunkPanels); }
// Below this many activations one thread converts them faster than the pool starts.
constexpr int64_t kSerialActivations = 8192;

bool take_fixed_point(int64_t rows, int64_t k, FixedPoint* x) {
  static thread_local Scratch scratch;
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

using PanelKernel = decltype(Kernels::q4_1_panels);

int quantised(const LinearArgs& a, int64_t tile_bytes, PanelKernel kernel) {
  FixedPoint x;
  if (const int status = convert_activations(a, &x)) return status;
  const uint8_t* tiles = static_cast<const uint8_t*>(a.weight);
  const int64_t panels = (a.n + kPanel - 1) / kPanel;
  const int64_t share = chunk_panels(panels);
  const int64_t panel_chunks = (panels + share - 1) / share;
  const int64_t row_chunks = (a.m + kChunkRows - 1) / kChunkRows;
  parallel_for(panel_chunks * row_chunks, [&](int64_t chunk) {
    const int64_t panel = chunk % panel_chunks * share;
    const int64_t row = chunk / panel_chunks * kChunkRows;
    kernel(tiles + panel * x.groups * tile_bytes, std::min(share, panels - panel), x, row,
           std::min(kChunkRows, a.m - row), a.output(row, panel * kPanel));
  });
  return kOk;
}

}  // namespace

int convert_activations(const LinearArgs& args, FixedPoint* to) {
  if (!take_fixed_point(args.m, args.k, to))
    return fail(kFailed, "linear: no memory for %lld x %lld activations", static_cast<long long>(args.m),
                static_cast<long long>(args.k));
  const auto convert = [&](int64_t row) { kernels().to_fixed_point(args.x + row * args.x_stride, row, *to); };
  if (args.m * args.k <= kSerialActivations)
    for (int64_t row = 0; row < args.m; ++row) convert(row);
  else
    parallel_for(args.m, convert);
  return kOk;
}

}  // namespace sm70

SM70_OP(linear_q4_1_cpu, 1, sm70::LinearArgs) { return sm70::quantised(*args, 320, sm70::kernels().q4_1_panels); }
SM70_OP(linear_q8_0_cpu, 1, sm70::LinearArgs) { return sm70::quantised(*args, 544, sm70::kernels().q8_0_panels); }
