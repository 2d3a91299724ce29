// Linear layers over dense weights, and the logits of chosen rows of a head.
#include <algorithm>

#include "cpu/kernels.h"
#include "cpu/linear_args.h"
#include "op.h"
#include "pool.h"

namespace {

using sm70::LinearArgs;

struct CandidateArgs {
  const float* x;
  const void* weight;
  const int64_t* ids;
  float* out;
  int64_t m, candidates, vocab, k, weight_bytes;
  int64_t x_stride, ids_stride, out_stride;
};

using RowKernel = decltype(sm70::Kernels::dense_row_f32);

RowKernel row_kernel(int64_t weight_bytes) {
  return weight_bytes == 4 ? sm70::kernels().dense_row_f32 : sm70::kernels().dense_row_f16;
}

const char* weight_row(const void* weight, int64_t row, int64_t k, int64_t weight_bytes) {
  return static_cast<const char*>(weight) + row * k * weight_bytes;
}

int dense(const LinearArgs& a, int64_t weight_bytes) {
  const RowKernel kernel = row_kernel(weight_bytes);
  constexpr int64_t kColumns = 16;
  sm70::parallel_for((a.n + kColumns - 1) / kColumns, [&](int64_t chunk) {
    for (int64_t n = chunk * kColumns; n < std::min((chunk + 1) * kColumns, a.n); ++n)
      kernel(weight_row(a.weight, n, a.k, weight_bytes), a.x, a.x_stride, a.m, a.k,
             a.residual == nullptr ? nullptr : a.residual + n, a.residual_stride, a.out + n, a.out_stride);
  });
  return sm70::kOk;
}

}  // namespace

SM70_OP(linear_f32_cpu, 1, LinearArgs) { return dense(*args, 4); }
SM70_OP(linear_f16_cpu, 1, LinearArgs) { return dense(*args, 2); }

// The same kernel as the dense head over the same rows: a candidate's logit has the bits of its dense logit.
SM70_OP(candidate_logits_cpu, 1, CandidateArgs) {
  const CandidateArgs& a = *args;
  for (int64_t m = 0; m < a.m; ++m)
    for (int64_t c = 0; c < a.candidates; ++c) {
      const int64_t id = a.ids[m * a.ids_stride + c];
      if (id < 0 || id >= a.vocab)
        return sm70::fail(sm70::kBadValue, "ids[%lld, %lld] is %lld, allowed 0..%lld", static_cast<long long>(m),
                          static_cast<long long>(c), static_cast<long long>(id), static_cast<long long>(a.vocab - 1));
    }
  const RowKernel kernel = row_kernel(a.weight_bytes);
  sm70::parallel_for(a.m, [&](int64_t m) {
    for (int64_t c = 0; c < a.candidates; ++c)
      kernel(weight_row(a.weight, a.ids[m * a.ids_stride + c], a.k, a.weight_bytes), a.x + m * a.x_stride, 0, 1, a.k,
             nullptr, 0, a.out + m * a.out_stride + c, 0);
  });
  return sm70::kOk;
}
