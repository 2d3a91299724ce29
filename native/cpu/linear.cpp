// Linear layers over GGUF blocks: out[m, n] = sum over k of x[m, k] * weight[n, k] (+ residual[m, n]).
#include <algorithm>
#include <vector>

#include "cpu/kernels.h"
#include "cpu/linear_args.h"
#include "cpu/scratch.h"
#include "op.h"
#include "pool.h"

namespace sm70 {
namespace {

constexpr int64_t kPanel = 16;
// Rows that one pass over a chunk's weights serves. More rows need several, and the chunk has to stay in the cache.
constexpr int64_t kOnePassRows = 4;
constexpr int64_t kCachedPanels = 16;

// Where each chunk of panels ends: a thread's part of all that is left each time. So a thread reads long runs of
// memory, and the last chunks are short enough for all threads to end together, whatever else the machine does.
const std::vector<int64_t>& chunk_ends(int64_t panels, int64_t rows) {
  static thread_local std::vector<int64_t> ends;
  const int64_t most = rows <= kOnePassRows ? panels : kCachedPanels;
  ends.clear();
  for (int64_t end = 0; end < panels; ends.push_back(end))
    end += std::clamp<int64_t>((panels - end) / thread_count(), 1, most);
  return ends;
}

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
  const std::vector<int64_t>& ends = chunk_ends(panels, a.m);
  const int64_t panel_chunks = static_cast<int64_t>(ends.size());
  const int64_t row_chunks = (a.m + kChunkRows - 1) / kChunkRows;
  parallel_for(panel_chunks * row_chunks, [&](int64_t chunk) {
    const int64_t at = chunk % panel_chunks, panel = at == 0 ? 0 : ends[at - 1];
    const int64_t row = chunk / panel_chunks * kChunkRows;
    kernel(tiles + panel * x.groups * tile_bytes, ends[at] - panel, x, row, std::min(kChunkRows, a.m - row),
           a.output(row, panel * kPanel));
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
