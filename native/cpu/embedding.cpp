// Rows of the embedding, as float32.
#include <cstring>

#include "cpu/kernels.h"
#include "op.h"

namespace {

struct EmbeddingQ80Args {
  const void* ids;
  int64_t id_bytes;
  const uint8_t* weight;
  float* out;
  int64_t t, n, k, out_stride;
};

struct EmbeddingDenseArgs {
  const void* ids;
  int64_t id_bytes;
  const void* weight;
  int64_t weight_bytes, weight_stride;
  float* out;
  int64_t t, n, k, out_stride;
};

int64_t id_at(const void* ids, int64_t id_bytes, int64_t at) {
  return id_bytes == 4 ? static_cast<const int32_t*>(ids)[at] : static_cast<const int64_t*>(ids)[at];
}

int out_of_range(int64_t at, int64_t id, int64_t n) {
  return sm70::fail(sm70::kBadValue, "embedding: ids[%lld] is %lld, allowed 0..%lld", static_cast<long long>(at),
                    static_cast<long long>(id), static_cast<long long>(n - 1));
}

}  // namespace

SM70_OP(embedding_q8_0_cpu, 1, EmbeddingQ80Args) {
  const int64_t groups = args->k / 32;
  for (int64_t t = 0; t < args->t; ++t) {
    const int64_t id = id_at(args->ids, args->id_bytes, t);
    if (id < 0 || id >= args->n) return out_of_range(t, id, args->n);
    sm70::kernels().q8_0_row(args->weight + id / 16 * groups * 544, id % 16, groups, args->out + t * args->out_stride);
  }
  return sm70::kOk;
}

SM70_OP(embedding_dense_cpu, 1, EmbeddingDenseArgs) {
  for (int64_t t = 0; t < args->t; ++t) {
    const int64_t id = id_at(args->ids, args->id_bytes, t);
    if (id < 0 || id >= args->n) return out_of_range(t, id, args->n);
    float* out = args->out + t * args->out_stride;
    if (args->weight_bytes == 4)
      std::memcpy(out, static_cast<const float*>(args->weight) + id * args->weight_stride,
                  static_cast<std::size_t>(args->k) * sizeof(float));
    else
      sm70::kernels().halves_to_floats(static_cast<const uint16_t*>(args->weight) + id * args->weight_stride, args->k,
                                       out);
  }
  return sm70::kOk;
}
