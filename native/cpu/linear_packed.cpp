// Linear layers over 4-bit weights in the SM70 packing. n is the logical width: padded columns are never written.
#include <algorithm>

#include "cpu/kernels.h"
#include "cpu/linear_args.h"
#include "op.h"
#include "pool.h"

namespace {

struct PackedLinearArgs {
  sm70::LinearArgs linear;
  const void* params;
  int64_t group;
  double global_scale;
};

using TileKernel = decltype(sm70::Kernels::int4_tile);

int packed(const PackedLinearArgs& args, TileKernel kernel) {
  const sm70::LinearArgs& a = args.linear;
  sm70::FixedPoint x;
  if (const int status = sm70::convert_activations(a, &x)) return status;
  const sm70::PackedWeight weight{static_cast<const uint8_t*>(a.weight), args.params, a.k, args.group,
                                  static_cast<float>(args.global_scale)};
  constexpr int64_t kColumns = 32;
  const int64_t tiles = (a.n + kColumns - 1) / kColumns;
  const int64_t row_chunks = (a.m + sm70::kChunkRows - 1) / sm70::kChunkRows;
  sm70::parallel_for(tiles * row_chunks, [&](int64_t chunk) {
    const int64_t tile = chunk % tiles, row = chunk / tiles * sm70::kChunkRows;
    kernel(weight, tile, x, row, std::min(sm70::kChunkRows, a.m - row), a.output(row, tile * kColumns));
  });
  return sm70::kOk;
}

}  // namespace

SM70_OP(linear_int4_cpu, 1, PackedLinearArgs) { return packed(*args, sm70::kernels().int4_tile); }
SM70_OP(linear_nvfp4_cpu, 1, PackedLinearArgs) { return packed(*args, sm70::kernels().nvfp4_tile); }
SM70_OP(linear_nvfp4_small_cpu, 1, PackedLinearArgs) { return packed(*args, sm70::kernels().nvfp4_small_tile); }
