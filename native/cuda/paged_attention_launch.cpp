#include <algorithm>
#include <iterator>

#include "cuda/driver.h"
#include "cuda/paged_attention.h"

namespace {

constexpr unsigned kReduceThreads = 256;
constexpr int64_t kMaxPartitions = 128;  // of the reduction kernel

constexpr unsigned threads_for(int64_t dim, int64_t row_tiles) { return dim == 64 || row_tiles == 1 ? 256 : 512; }

// Dynamic shared bytes of a kernel: the layout of paged_attention::Shape.
constexpr unsigned shared_bytes(unsigned dim, unsigned row_tiles) {
  const unsigned rows = 16 * row_tiles;
  const unsigned keys = dim == 256 ? 32 : 64;
  const unsigned parts = dim == 256 || (dim == 64 && row_tiles == 1) ? 2 : 1;
  return (rows + 2 * keys) * (dim + 8) * 2 + parts * rows * (keys + 4) * 4 + rows * (keys + 8) * 2 + 5 * keys * 4 +
         3 * rows * 4 + 64;
}

#define SM70_ATTENTION(dim, tiles)                                                                       \
  {                                                                                                      \
      {"paged_attention_d" #dim, "paged_attention_d" #dim "_m" #tiles "_f16", shared_bytes(dim, tiles)}, \
      {"paged_attention_d" #dim, "paged_attention_d" #dim "_m" #tiles "_fp8", shared_bytes(dim, tiles)}, \
  }
struct Variant {
  int64_t dim;
  int64_t row_tiles;
  sm70::Kernel kernels[2];  // FP16 cache, FP8 cache
};
const Variant g_variants[] = {
    {64, 1, SM70_ATTENTION(64, 1)},   {64, 4, SM70_ATTENTION(64, 4)},   {128, 1, SM70_ATTENTION(128, 1)},
    {128, 4, SM70_ATTENTION(128, 4)}, {256, 1, SM70_ATTENTION(256, 1)}, {256, 3, SM70_ATTENTION(256, 3)},
    {256, 4, SM70_ATTENTION(256, 4)},
};
#undef SM70_ATTENTION
const sm70::Kernel g_reduce("paged_attention_reduce", "paged_attention_reduce");
const sm70::Capability g_capability("paged_attention_cuda", 1);

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int check(const PagedAttentionArgs& args, sm70::Error& error) {
  if (args.head_dim < 8 || args.head_dim > 256 || args.head_dim % 8 != 0)
    return error.fail("head_dim %lld: allowed are multiples of 8 up to 256", static_cast<long long>(args.head_dim));
  if (args.kv_heads < 1 || args.query_heads % args.kv_heads != 0)
    return error.fail("%lld query heads over %lld KV heads: must divide", static_cast<long long>(args.query_heads),
                      static_cast<long long>(args.kv_heads));
  if (args.partitions < 1 || args.partitions > kMaxPartitions || args.chunk < 64 || args.chunk % 64 != 0)
    return error.fail("%lld partitions of %lld keys: allowed are 1 to %lld of a multiple of 64",
                      static_cast<long long>(args.partitions), static_cast<long long>(args.chunk),
                      static_cast<long long>(kMaxPartitions));
  return 0;
}

}  // namespace

// See PagedAttentionArgs. Writes out (and the partials); two launches, the second only where a sequence can be split.
SM70_EXPORT int sm70_paged_attention_cuda(const PagedAttentionArgs* given, int64_t args_bytes, int device, void* stream,
                                          char* err, int64_t err_len) {
  sm70::Error error{err, err_len};
  if (args_bytes != sizeof(PagedAttentionArgs))
    return error.fail("argument record of %lld bytes, expected %zu", static_cast<long long>(args_bytes),
                      sizeof(PagedAttentionArgs));
  PagedAttentionArgs args = *given;
  // The kernels leave E4M3 numbers divided by 256 (see paged_attention::Fp8).
  if (args.kv_format == 1) {
    args.scale *= 256;
    args.v_scale *= 256;
  }
  // They count the cache in vectors of 16 bytes, which every row starts on.
  const int64_t per_vector = args.kv_format == 0 ? 8 : 16;
  for (int64_t* stride : {&args.k_block_stride, &args.k_token_stride, &args.k_head_stride, &args.v_block_stride,
                          &args.v_token_stride, &args.v_head_stride})
    *stride /= per_vector;
  if (check(args, error) != 0) return 1;
  const int64_t dim = args.head_dim <= 64 ? 64 : args.head_dim <= 128 ? 128 : 256;
  const Variant* variant = std::find_if(std::begin(g_variants), std::end(g_variants), [&](const Variant& v) {
    return v.dim == dim && v.row_tiles == args.row_tiles;
  });
  if (variant == std::end(g_variants))
    return error.fail("row_tiles %lld: allowed are 1, 4 and, above head dimension 128, 3",
                      static_cast<long long>(args.row_tiles));
  const sm70::Kernel& kernel = variant->kernels[args.kv_format == 0 ? 0 : 1];
  const unsigned shared = kernel.max_dynamic_shared();
  const unsigned threads = threads_for(dim, args.row_tiles);

  // No more blocks than items there can be, and no more than fit at a time: a block takes item after item.
  const int64_t rows = 16 * args.row_tiles;
  const int64_t group = args.query_heads / args.kv_heads;
  const int64_t capacity = args.max_blocks * args.block_size;
  const int64_t partitions = std::min(args.partitions, std::max<int64_t>(1, ceil_div(capacity, args.chunk)));
  const int64_t row_blocks = args.tokens * group / rows + args.batch;
  const int64_t split_rows = std::min(args.tokens, args.batch * kMaxSplitQueries);
  const int64_t split_blocks = std::min(row_blocks, split_rows * group / rows + args.batch);
  const int64_t items = row_blocks + split_blocks * (partitions - 1);
  const int64_t resident =
      ceil_div(static_cast<int64_t>(sm70::multiprocessors(device)) * kernel.resident_blocks(device, threads, shared),
               args.kv_heads);
  const sm70::Dim3 grid{static_cast<unsigned>(std::min(items, resident)), static_cast<unsigned>(args.kv_heads)};
  if (kernel.launch(grid, {threads}, shared, {device, stream}, error, args) != 0) return 1;
  if (partitions == 1) return 0;
  const sm70::Dim3 reduce_grid{static_cast<unsigned>(split_rows), static_cast<unsigned>(args.query_heads)};
  return g_reduce.launch(reduce_grid, {kReduceThreads}, 0, {device, stream}, error, args);
}
