// FP8 codes of whole tensors, and their values.
#include "cpu/fp8.h"

#include <algorithm>

#include "cpu/kernels.h"
#include "op.h"
#include "pool.h"

namespace {

struct Fp8Args {
  const void* from;
  void* to;
  int64_t count;
  int64_t wide_bytes;  // of an element that is not FP8: 4 or 2
  int64_t kv_code;
  double scale;
};

constexpr int64_t kChunk = 4096;  // a multiple of 16

template <class Body>
void for_chunks(int64_t count, const Body& body) {
  sm70::parallel_for((count + kChunk - 1) / kChunk,
                     [&](int64_t chunk) { body(chunk * kChunk, std::min(kChunk, count - chunk * kChunk)); });
}

}  // namespace

SM70_OP(fp8_encode_cpu, 1, Fp8Args) {
  const Fp8Args& a = *args;
  const float scale = static_cast<float>(a.scale);
  for_chunks(a.count, [&](int64_t start, int64_t count) {
    float wide[kChunk];
    const float* from = static_cast<const float*>(a.from) + start;
    if (a.wide_bytes == 2) {
      sm70::kernels().halves_to_floats(static_cast<const uint16_t*>(a.from) + start, count, wide);
      from = wide;
    }
    uint8_t* to = static_cast<uint8_t*>(a.to) + start;
    for (int64_t i = 0; i < count; ++i)
      to[i] = a.kv_code == sm70::kKvE4M3 ? sm70::to_e4m3(from[i] / scale) : sm70::to_e5m2(from[i] / scale);
  });
  return sm70::kOk;
}

SM70_OP(fp8_decode_cpu, 1, Fp8Args) {
  const Fp8Args& a = *args;
  const float scale = static_cast<float>(a.scale);
  for_chunks(a.count, [&](int64_t start, int64_t count) {
    // Codes are read sixteen at a time: the last few go through a padded copy.
    uint8_t codes[kChunk] = {};
    float wide[kChunk];
    std::copy_n(static_cast<const uint8_t*>(a.from) + start, count, codes);
    sm70::kernels().kv_to_floats(a.kv_code, codes, (count + 15) / 16 * 16, wide);
    for (int64_t i = 0; i < count; ++i) wide[i] *= scale;
    if (a.wide_bytes == 4)
      std::copy_n(wide, count, static_cast<float*>(a.to) + start);
    else
      sm70::kernels().floats_to_halves(wide, count, static_cast<uint16_t*>(a.to) + start);
  });
  return sm70::kOk;
}
