// The sampling ops: one row a chunk of the pool.
#include <cinttypes>

#include "cpu/kernels.h"
#include "cpu/sampling_row.h"
#include "op.h"
#include "pool.h"

namespace sm70 {

const SamplingBlocks& sampling_blocks() {
  static const SamplingBlocks* const tables[] = {&kSamplingPortable, &kSamplingAvx2, &kSamplingAvx512};
  return *tables[isa()];
}

namespace {

struct Logits {
  float* data;
  int64_t rows;
  int64_t width;
  int64_t stride;
};

float or_one(const float* values, int64_t row) { return values == nullptr ? 1.0f : values[row]; }

SamplingRow view(const Logits& logits, int64_t row, float temperature) {
  return SamplingRow(logits.data + row * logits.stride, logits.width, temperature, sampling_blocks());
}

// A row as its plan sees it: a greedy row is not divided.
SamplingRow planned(const Logits& logits, const float* temperature, const RowPlan* plan, int64_t row) {
  return view(logits, row, plan[row].flags != 0 ? 1.0f : or_one(temperature, row));
}

int check_tokens(const char* name, const int64_t* tokens, int64_t lowest, const Logits& logits) {
  for (int64_t row = 0; row < logits.rows; ++row)
    if (tokens[row] < lowest || tokens[row] >= logits.width)
      return fail(kBadValue, "%s: saw token %" PRId64 " in row %" PRId64 ", allowed %" PRId64 "..%" PRId64, name,
                  tokens[row], row, lowest, logits.width - 1);
  return kOk;
}

struct PlanArgs {
  Logits logits;
  const int32_t* top_k;
  const float* top_p;
  const float* temperature;
  RowPlan* plan;
};

struct ApplyArgs {
  Logits logits;
  const RowPlan* plan;
  const float* temperature;
  double mask_value;
};

struct MassesArgs {
  Logits logits;
  const RowPlan* plan;
  const float* temperature;
  uint64_t* masses;
};

struct WeighArgs {
  Logits logits;
  const RowPlan* plan;
  const float* temperature;
  const int64_t* tokens;
  RowWeight* weights;
};

struct DrawArgs {
  Logits logits;
  const RowPlan* plan;
  const float* temperature;
  const uint64_t* bits;
  const int64_t* excluded;
  int64_t* tokens;
};

}  // namespace

SM70_OP(sampling_plan_cpu, 1, PlanArgs) {
  parallel_for(args->logits.rows, [args](int64_t row) {
    SamplingScratch scratch;
    const int64_t top_k = args->top_k == nullptr ? 0 : args->top_k[row];
    const float top_p = or_one(args->top_p, row);
    const float temperature = or_one(args->temperature, row);
    const uint32_t flags = parameter_flags(top_p, temperature);
    args->plan[row] = plan_row(view(args->logits, row, flags != 0 ? 1.0f : temperature), top_k, top_p, flags, scratch);
  });
  return kOk;
}

SM70_OP(sampling_apply_cpu, 1, ApplyArgs) {
  parallel_for(args->logits.rows, [args](int64_t row) {
    const RowPlan& plan = args->plan[row];
    const float temperature = or_one(args->temperature, row);
    if (plan.flags != 0 || (plan.cut == 0 && temperature == 1.0f)) return;
    float* logits = args->logits.data + row * args->logits.stride;
    const int64_t width = args->logits.width;
    for (int64_t at = 0; at < width; at += kSamplingBlock) {
      const int count = static_cast<int>(width - at < kSamplingBlock ? width - at : kSamplingBlock);
      sampling_blocks().apply(logits + at, count, temperature, plan, static_cast<uint32_t>(at),
                              static_cast<float>(args->mask_value));
    }
  });
  return kOk;
}

SM70_OP(sampling_masses_cpu, 1, MassesArgs) {
  parallel_for(args->logits.rows, [args](int64_t row) {
    SamplingScratch scratch;
    mass_row(planned(args->logits, args->temperature, args->plan, row), args->plan[row],
             args->masses + row * args->logits.width, scratch);
  });
  return kOk;
}

SM70_OP(sampling_weigh_cpu, 1, WeighArgs) {
  if (const int status = check_tokens("token_ids", args->tokens, 0, args->logits)) return status;
  parallel_for(args->logits.rows, [args](int64_t row) {
    SamplingScratch scratch;
    args->weights[row] = weigh_row(planned(args->logits, args->temperature, args->plan, row), args->plan[row],
                                   args->tokens[row], scratch);
  });
  return kOk;
}

SM70_OP(sampling_draw_cpu, 1, DrawArgs) {
  if (args->excluded != nullptr)
    if (const int status = check_tokens("excluded", args->excluded, -1, args->logits)) return status;
  parallel_for(args->logits.rows, [args](int64_t row) {
    SamplingScratch scratch;
    const int64_t excluded = args->excluded == nullptr ? -1 : args->excluded[row];
    args->tokens[row] = draw_row(planned(args->logits, args->temperature, args->plan, row), args->plan[row],
                                 args->bits[row], excluded, scratch);
  });
  return kOk;
}

}  // namespace sm70
