#include <algorithm>

#include "cuda/driver.h"
#include "cuda/gdn.h"

namespace {

constexpr unsigned kChunkPrepareShared = (2 * 64 * 132 + 64 * 65 + 2 * 64) * 4;
constexpr unsigned kChunkScanShared = (64 * 132 + 64 * 68 + 128 * 20 + 64 * 20) * 4;
const sm70::Kernel g_conv("gdn_conv", "gdn_conv");
const sm70::Kernel g_gates("gdn_conv", "gdn_gates");
const sm70::Kernel g_gated_rms_norm("gdn_conv", "gdn_gated_rms_norm");
const sm70::Kernel g_recurrent("gdn_recurrent", "gdn_recurrent");
const sm70::Kernel g_chunk_prepare("gdn_chunk", "gdn_chunk_prepare", kChunkPrepareShared);
const sm70::Kernel g_chunk_scan("gdn_chunk", "gdn_chunk_scan", kChunkScanShared);
const sm70::Capability g_conv_capability("gdn_conv_cuda", 1);
const sm70::Capability g_gates_capability("gdn_gates_cuda", 1);
const sm70::Capability g_gated_rms_norm_capability("gdn_gated_rms_norm_cuda", 1);
const sm70::Capability g_recurrent_capability("gdn_recurrent_cuda", 1);
const sm70::Capability g_chunk_capability("gdn_chunk_cuda", 1);

unsigned ceil_div(int64_t a, int64_t b) { return static_cast<unsigned>((a + b - 1) / b); }

template <typename Args>
int check_size(int64_t seen, sm70::Error& error) {
  if (seen == static_cast<int64_t>(sizeof(Args))) return 0;
  return error.fail("argument record of %lld bytes, expected %zu", static_cast<long long>(seen), sizeof(Args));
}

int check_dims(const GdnArgs& args, sm70::Error& error) {
  if (args.key_dim < 4 || args.key_dim > 128 || args.key_dim % 4 != 0)
    return error.fail("key_dim %lld: allowed are multiples of 4 up to 128", static_cast<long long>(args.key_dim));
  if (args.key_heads < 1 || args.value_heads % args.key_heads != 0)
    return error.fail("%lld value heads over %lld key heads: must divide", static_cast<long long>(args.value_heads),
                      static_cast<long long>(args.key_heads));
  return 0;
}

}  // namespace

// Causal convolution of four taps with SiLU; see GdnConvArgs.
SM70_EXPORT int sm70_gdn_conv_cuda(const GdnConvArgs* args, int64_t args_bytes, int device, void* stream, char* err,
                                   int64_t err_len) {
  sm70::Error error{err, err_len};
  if (check_size<GdnConvArgs>(args_bytes, error) != 0) return 1;
  const unsigned stretches = std::min(64u, ceil_div(args->tokens, 64));
  const sm70::Dim3 grid{ceil_div(args->channels, 256), static_cast<unsigned>(args->batch), stretches};
  return g_conv.launch(grid, {256}, 0, {device, stream}, error, *args);
}

// a, b: FP16 [tokens, heads]; a_log, dt_bias: FP32 [heads]; log_decay, beta: FP32 [tokens, heads].
SM70_EXPORT int sm70_gdn_gates_cuda(const void* a, int64_t a_stride, const void* b, int64_t b_stride, const void* a_log,
                                    const void* dt_bias, void* log_decay, void* beta, int64_t tokens, int heads,
                                    int device, void* stream, char* err, int64_t err_len) {
  sm70::Error error{err, err_len};
  return g_gates.launch({ceil_div(tokens * heads, 256)}, {256}, 0, {device, stream}, error, a, a_stride, b, b_stride,
                        a_log, dt_bias, log_decay, beta, tokens, heads);
}

// x, z, out: FP16 [tokens, heads, dim], tokens strided; weight: FP32 [dim]; rows = tokens * heads.
SM70_EXPORT int sm70_gdn_gated_rms_norm_cuda(const void* x, int64_t x_stride, const void* z, int64_t z_stride,
                                             const void* weight, void* out, int64_t out_stride, int64_t rows, int heads,
                                             int dim, float eps, int device, void* stream, char* err, int64_t err_len) {
  sm70::Error error{err, err_len};
  return g_gated_rms_norm.launch({ceil_div(rows, 8)}, {256}, 0, {device, stream}, error, x, x_stride, z, z_stride,
                                 weight, out, out_stride, rows, heads, dim, eps);
}

// Token by token; see GdnArgs. The chunk arrays are not used.
SM70_EXPORT int sm70_gdn_recurrent_cuda(const GdnArgs* args, int64_t args_bytes, int device, void* stream, char* err,
                                        int64_t err_len) {
  sm70::Error error{err, err_len};
  if (check_size<GdnArgs>(args_bytes, error) != 0 || check_dims(*args, error) != 0) return 1;
  const sm70::Dim3 grid{ceil_div(args->value_dim, 32), static_cast<unsigned>(args->value_heads),
                        static_cast<unsigned>(args->batch)};
  return g_recurrent.launch(grid, {128}, 0, {device, stream}, error, *args);
}

// In chunks of 64; only the last token's slot of each sequence is written.
SM70_EXPORT int sm70_gdn_chunk_cuda(const GdnArgs* args, int64_t args_bytes, int device, void* stream, char* err,
                                    int64_t err_len) {
  sm70::Error error{err, err_len};
  if (check_size<GdnArgs>(args_bytes, error) != 0 || check_dims(*args, error) != 0) return 1;
  if (args->chunks < args->tokens / kGdnChunk + args->batch)
    return error.fail("%lld chunks: %lld tokens of %lld sequences may need %lld", static_cast<long long>(args->chunks),
                      static_cast<long long>(args->tokens), static_cast<long long>(args->batch),
                      static_cast<long long>(args->tokens / kGdnChunk + args->batch));
  const auto heads = static_cast<unsigned>(args->value_heads);
  const sm70::Dim3 prepare{static_cast<unsigned>(args->chunks), heads};
  if (g_chunk_prepare.launch(prepare, {256}, kChunkPrepareShared, {device, stream}, error, *args) != 0) return 1;
  const sm70::Dim3 scan{ceil_div(args->value_dim, 16), heads, static_cast<unsigned>(args->batch)};
  return g_chunk_scan.launch(scan, {256}, kChunkScanShared, {device, stream}, error, *args);
}
