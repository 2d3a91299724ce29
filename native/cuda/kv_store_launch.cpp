#include "cuda/driver.h"
#include "cuda/kv_store.h"

namespace {
constexpr unsigned kThreads = 128;
const sm70::Kernel g_kv_store("kv_store", "kv_store");
const sm70::Capability g_capability("kv_store_cuda", 1);
const sm70::Capability g_store_kv_capability("store_kv_cuda", 1);
const sm70::Capability g_rope_store_kv_capability("rope_store_kv_cuda", 1);
}  // namespace

// See KvStoreArgs: store alone (q and cos_sin null), or rotate queries and keys and store.
SM70_EXPORT int sm70_kv_store_cuda(const KvStoreArgs* given, int64_t args_bytes, int device, void* stream, char* err,
                                   int64_t err_len) {
  sm70::Error error{err, err_len};
  if (args_bytes != sizeof(KvStoreArgs))
    return error.fail("argument record of %lld bytes, expected %zu", static_cast<long long>(args_bytes),
                      sizeof(KvStoreArgs));
  const KvStoreArgs& args = *given;
  if (args.head_dim < 2 || args.head_dim > 256 || args.head_dim % 2 != 0 || args.rotary % 2 != 0 ||
      args.rotary > args.head_dim)
    return error.fail("head_dim %lld, rotary %lld: allowed are even numbers, rotary <= head_dim <= 256",
                      static_cast<long long>(args.head_dim), static_cast<long long>(args.rotary));
  const int64_t heads = (args.q == nullptr ? 0 : args.query_heads) + 2 * args.kv_heads;
  return g_kv_store.launch({static_cast<unsigned>(args.tokens), static_cast<unsigned>(heads)}, {kThreads}, 0,
                           {device, stream}, error, args);
}
