#include <algorithm>

#include "cuda/driver.h"
#include "cuda/sampling_workspace.cuh"

namespace sm70 {
namespace {

const Kernel g_scan("sampling_scan", "sampling_scan");
const Kernel g_apply("sampling_scan", "sampling_apply");
const Kernel g_plan("sampling_plan", "sampling_plan");
const Kernel g_finish("sampling_finish", "sampling_finish");
const Kernel g_draw("sampling_draw", "sampling_draw");
const Kernel g_masses("sampling_draw", "sampling_masses");

const Capability g_plan_capability("sampling_plan_cuda", 2);
const Capability g_sample_capability("sampling_sample_cuda", 1);
const Capability g_apply_capability("sampling_apply_cuda", 1);
const Capability g_draw_capability("sampling_draw_cuda", 1);
const Capability g_weigh_capability("sampling_weigh_cuda", 1);
const Capability g_masses_capability("sampling_masses_cuda", 1);

constexpr int64_t kSliceEntries = 1 << 17;  // more would overflow the plan kernel's counters of mass
constexpr int64_t kMaxRows = 65535;         // the grid's second dimension
constexpr int64_t kScanChunks = 4;          // of a warp of the scan kernel, at least

// How many blocks walk each row. No result depends on it.
struct Shape {
  SamplingBatch batch;
  unsigned rows;
  int64_t chunks;
  int device;

  // Blocks of a row: one wave of them fills the device, since a second one that is nearly empty takes as long as the
  // first. A block has at least `chunks_each` chunks a warp, and a slice no more than the plan's counters hold.
  unsigned blocks(const Kernel& kernel, unsigned threads, int64_t chunks_each = 1) const {
    const int64_t wave = int64_t{multiprocessors(device)} * kernel.resident_blocks(device, threads, 0) / rows;
    const int64_t warps = threads / 32 * chunks_each;
    const int64_t useful = (chunks + warps - 1) / warps;
    const int64_t needed = (batch.width + kSliceEntries - 1) / kSliceEntries;
    return static_cast<unsigned>(std::min<int64_t>(std::max({std::min(wave, useful), needed, int64_t{1}}), kMaxSlices));
  }
  Dim3 grid(unsigned blocks) const { return {blocks, rows}; }
};

int shape_of(const SamplingArgs* args, int64_t bytes, int device, Error& error, Shape& shape) {
  if (bytes != static_cast<int64_t>(sizeof(SamplingArgs)))
    return error.fail("argument record of %lld bytes, expected %zu", static_cast<long long>(bytes),
                      sizeof(SamplingArgs));
  if (args->workspace_row_bytes != static_cast<int64_t>(sizeof(RowWorkspace)))
    return error.fail("workspace of %lld bytes a row, expected %zu; rebuild: python -m native.build",
                      static_cast<long long>(args->workspace_row_bytes), sizeof(RowWorkspace));
  if (args->rows < 1 || args->rows > kMaxRows || args->width < 1)
    return error.fail("%lld rows of %lld: allowed are 1 to %lld rows of at least 1", static_cast<long long>(args->rows),
                      static_cast<long long>(args->width), static_cast<long long>(kMaxRows));
  const int64_t width = args->width;
  const int64_t chunk = (width + int64_t{kMaxChunks} * kWarpRead - 1) / (int64_t{kMaxChunks} * kWarpRead) * kWarpRead;
  const int64_t chunks = (width + chunk - 1) / chunk;
  const bool vectors = aligned(args->logits, 16) && args->stride % 4 == 0;
  shape.batch = {args->logits,
                 args->stride,
                 args->top_k,
                 args->top_p,
                 args->temperature,
                 static_cast<int32_t>(width),
                 static_cast<int32_t>(chunk),
                 vectors};
  shape.rows = static_cast<unsigned>(args->rows);
  shape.chunks = chunks;
  shape.device = device;
  return 0;
}

int scan(const Shape& shape, const SamplingArgs* args, Where where, Error& error) {
  return g_scan.launch(shape.grid(shape.blocks(g_scan, kScanThreads, kScanChunks)), {kScanThreads}, 0, where, error,
                       shape.batch, args->workspace);
}

CutTarget target_of(const SamplingArgs* args, bool cuts) {
  return {cuts ? args->logits : nullptr, static_cast<float>(args->mask_value)};
}

// The largest keys of the chunks, then the plans; where `cuts`, the logits are cut in the same three launches.
int plan(const Shape& shape, const SamplingArgs* args, bool cuts, Where where, Error& error) {
  const unsigned scanners = shape.blocks(g_scan, kScanThreads, kScanChunks);
  const CutTarget target = target_of(args, cuts);
  if (g_scan.launch(shape.grid(scanners), {kScanThreads}, 0, where, error, shape.batch, args->workspace) != 0 ||
      g_plan.launch(shape.grid(shape.blocks(g_plan, kPlanThreads)), {kPlanThreads}, 0, where, error, shape.batch,
                    args->workspace, args->plan, target, static_cast<int32_t>(scanners)) != 0)
    return 1;
  return g_finish.launch(shape.grid(shape.blocks(g_finish, kFinishThreads)), {kFinishThreads}, 0, where, error,
                         shape.batch, args->workspace, args->plan, target);
}

int draw(const Shape& shape, const SamplingArgs* args, bool weigh, Where where, Error& error) {
  const RowPlan* plan = args->plan;
  const int64_t* tokens = weigh ? args->tokens : nullptr;
  return g_draw.launch(shape.grid(shape.blocks(g_draw, kPlanThreads)), {kPlanThreads}, 0, where, error, shape.batch,
                       args->workspace, plan, args->bits, args->excluded, args->out, tokens,
                       reinterpret_cast<uint64_t*>(args->out));
}

}  // namespace
}  // namespace sm70

// Plans, and where `apply` is set cuts too.
SM70_EXPORT int sm70_sampling_plan_cuda(const sm70::SamplingArgs* args, int64_t args_bytes, int device, void* stream,
                                        char* err, int64_t err_len) {
  using namespace sm70;
  Error error{err, err_len};
  Shape shape;
  if (shape_of(args, args_bytes, device, error, shape) != 0) return 1;
  return plan(shape, args, args->apply != 0, {device, stream}, error);
}

// Plans and draws by that plan, with one look at the chunks.
SM70_EXPORT int sm70_sampling_sample_cuda(const sm70::SamplingArgs* args, int64_t args_bytes, int device, void* stream,
                                          char* err, int64_t err_len) {
  using namespace sm70;
  Error error{err, err_len};
  Shape shape;
  const Where where{device, stream};
  if (shape_of(args, args_bytes, device, error, shape) != 0 || plan(shape, args, false, where, error) != 0) return 1;
  return draw(shape, args, false, where, error);
}

SM70_EXPORT int sm70_sampling_apply_cuda(const sm70::SamplingArgs* args, int64_t args_bytes, int device, void* stream,
                                         char* err, int64_t err_len) {
  using namespace sm70;
  Error error{err, err_len};
  Shape shape;
  if (shape_of(args, args_bytes, device, error, shape) != 0) return 1;
  const RowPlan* plan = args->plan;
  return g_apply.launch(shape.grid(shape.blocks(g_apply, kScanThreads)), {kScanThreads}, 0, {device, stream}, error,
                        shape.batch, target_of(args, true), plan);
}

SM70_EXPORT int sm70_sampling_draw_cuda(const sm70::SamplingArgs* args, int64_t args_bytes, int device, void* stream,
                                        char* err, int64_t err_len) {
  using namespace sm70;
  Error error{err, err_len};
  Shape shape;
  const Where where{device, stream};
  if (shape_of(args, args_bytes, device, error, shape) != 0 || scan(shape, args, where, error) != 0) return 1;
  return draw(shape, args, false, where, error);
}

SM70_EXPORT int sm70_sampling_weigh_cuda(const sm70::SamplingArgs* args, int64_t args_bytes, int device, void* stream,
                                         char* err, int64_t err_len) {
  using namespace sm70;
  Error error{err, err_len};
  Shape shape;
  const Where where{device, stream};
  if (shape_of(args, args_bytes, device, error, shape) != 0 || scan(shape, args, where, error) != 0) return 1;
  return draw(shape, args, true, where, error);
}

SM70_EXPORT int sm70_sampling_masses_cuda(const sm70::SamplingArgs* args, int64_t args_bytes, int device, void* stream,
                                          char* err, int64_t err_len) {
  using namespace sm70;
  Error error{err, err_len};
  Shape shape;
  const Where where{device, stream};
  if (shape_of(args, args_bytes, device, error, shape) != 0 || scan(shape, args, where, error) != 0) return 1;
  const RowWorkspace* workspace = args->workspace;
  const RowPlan* plan = args->plan;
  return g_masses.launch(shape.grid(shape.blocks(g_masses, kPlanThreads)), {kPlanThreads}, 0, where, error, shape.batch,
                         workspace, plan, reinterpret_cast<uint64_t*>(args->out));
}
