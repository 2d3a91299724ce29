// First and last pass over the logits: the largest key of every chunk, and the cut itself.
#include "sampling_device.cuh"

using namespace sm70;

namespace {

constexpr int kWarps = kScanThreads / kWarp;
constexpr int kAhead = 4;  // chunks that a warp has in flight

// Prepares the row's workspace for the plan kernel: nothing is assumed about what the memory holds.
__device__ void clear_row(RowWorkspace& space) {
  const int at = blockIdx.x * kScanThreads + threadIdx.x;
  for (int bin = at; bin < kMassBins; bin += gridDim.x * kScanThreads) space.coarse[bin] = 0;
  if (at == 0) {
    space.arrivals[0] = 0;
    space.arrivals[1] = 0;
    space.arrivals[2] = 0;
    space.total = 0;
    space.ahead = 0;
    space.found = 0;
    space.task = kDone;
  }
}

__device__ uint32_t chunk_top(const RowReader& row, int64_t base, int chunk, int lane) {
  uint32_t top = 0;
  for (int at = 0; at < chunk; at += kWarpRead) {
    const Quad quad = read_quad(row, static_cast<int>(base) + at, lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) top = max(top, quad.key[i]);
  }
  return top;
}

}  // namespace

SM70_KERNEL((kScanThreads), sampling_scan, SamplingBatch batch, RowWorkspace* workspace) {
  const int row_index = blockIdx.y;
  RowWorkspace& space = workspace[row_index];
  clear_row(space);
  const float temperature = batch.temperature == nullptr ? 1.0f : batch.temperature[row_index];
  const RowReader row = reader_of(batch, row_index, parameter_flags(1.0f, temperature) == 0);
  const int chunks = ceil_divide(batch.width, batch.chunk);
  const int lane = threadIdx.x % kWarp;
  const int warp = blockIdx.x * kWarps + threadIdx.x / kWarp;
  for (int first = warp * kAhead; first < chunks; first += gridDim.x * kWarps * kAhead) {
    uint32_t top[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      // A chunk past the end reads nothing.
      const int64_t base = min(static_cast<int64_t>(first + i) * batch.chunk, static_cast<int64_t>(batch.width));
      top[i] = chunk_top(row, base, batch.chunk, lane);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      top[i] = warp_max(top[i]);
      if (lane == 0 && first + i < chunks) space.top[first + i] = top[i];
    }
  }
}

// Cuts the logits in place. `workspace` may be null; where it is not, it holds the chunk maxima of these same logits
// and a chunk that lies below the cut is written without being read.
SM70_KERNEL((kScanThreads), sampling_apply, SamplingBatch batch, float* logits, const RowPlan* plans, float mask_value,
            const RowWorkspace* workspace) {
  const int row_index = blockIdx.y;
  const RowPlan plan = plans[row_index];
  const RowReader row = reader_of(batch, row_index, true);
  if (plan.flags != 0 || (plan.cut == 0 && row.temperature == 1.0f)) return;
  float* out = logits + row_index * batch.stride;
  const int chunks = ceil_divide(batch.width, batch.chunk);
  const int lane = threadIdx.x % kWarp;
  const int warp = blockIdx.x * kWarps + threadIdx.x / kWarp;
  for (int chunk = warp; chunk < chunks; chunk += gridDim.x * kWarps) {
    const bool gone = workspace != nullptr && workspace[row_index].top[chunk] < plan.cut;
    const int end = min(static_cast<int64_t>(chunk + 1) * batch.chunk, static_cast<int64_t>(batch.width));
    for (int base = chunk * batch.chunk; base < end; base += kWarpRead) {
      const int first = row.vectors ? base + 4 * lane : base + lane;
      const int step = row.vectors ? 1 : kWarp;
      if (row.vectors && first + 3 < row.width) {
        float4* place = reinterpret_cast<float4*>(out + first);
        if (gone) {
          *place = make_float4(mask_value, mask_value, mask_value, mask_value);
          continue;
        }
        const float4 value = *place;
        float cut[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          cut[i] = row.value(cut[i]);
          if (!stays(ordered_key(cut[i]), first + i, plan)) cut[i] = mask_value;
        }
        *place = make_float4(cut[0], cut[1], cut[2], cut[3]);
        continue;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int id = first + i * step;
        if (id >= row.width) continue;
        const float value = gone ? 0.0f : row.value(out[id]);
        out[id] = !gone && stays(ordered_key(value), id, plan) ? value : mask_value;
      }
    }
  }
}
