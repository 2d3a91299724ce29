// Body of SamplingBlocks, included once by the file of each instruction set, which names the table
// SM70_SAMPLING_BLOCKS. Plain loops that the compiler turns into vectors, but for the 32 x 32 bit products, which it
// does not see; nothing from the standard library, whose templates the linker could take from the wrong file.
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "cpu/sampling_blocks.h"

namespace sm70 {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 8;
using Lanes = __m512i;
inline Lanes load(const uint64_t* from) { return _mm512_loadu_si512(from); }
inline void store(uint64_t* to, Lanes value) { _mm512_storeu_si512(to, value); }
inline Lanes all(uint64_t value) { return _mm512_set1_epi64(static_cast<long long>(value)); }
inline Lanes product_high(Lanes a, Lanes b) { return _mm512_srli_epi64(_mm512_mul_epu32(a, b), 32); }
inline Lanes minus(Lanes a, Lanes b) { return _mm512_sub_epi64(a, b); }
inline Lanes plus(Lanes a, Lanes b) { return _mm512_add_epi64(a, b); }
inline Lanes right(Lanes a, Lanes by) { return _mm512_srlv_epi64(a, by); }
inline Lanes left(Lanes a) { return _mm512_slli_epi64(a, kMassBits - 30); }
#elif defined(__AVX2__)
constexpr int kLanes = 4;
using Lanes = __m256i;
inline Lanes load(const uint64_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
inline void store(uint64_t* to, Lanes value) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value); }
inline Lanes all(uint64_t value) { return _mm256_set1_epi64x(static_cast<long long>(value)); }
inline Lanes product_high(Lanes a, Lanes b) { return _mm256_srli_epi64(_mm256_mul_epu32(a, b), 32); }
inline Lanes minus(Lanes a, Lanes b) { return _mm256_sub_epi64(a, b); }
inline Lanes plus(Lanes a, Lanes b) { return _mm256_add_epi64(a, b); }
inline Lanes right(Lanes a, Lanes by) { return _mm256_srlv_epi64(a, by); }
inline Lanes left(Lanes a) { return _mm256_slli_epi64(a, kMassBits - 30); }
#else
constexpr int kLanes = 1;
using Lanes = uint64_t;
inline Lanes load(const uint64_t* from) { return *from; }
inline void store(uint64_t* to, Lanes value) { *to = value; }
inline Lanes all(uint64_t value) { return value; }
inline Lanes product_high(Lanes a, Lanes b) { return (static_cast<uint64_t>(static_cast<uint32_t>(a)) * b) >> 32; }
inline Lanes minus(Lanes a, Lanes b) { return a - b; }
inline Lanes plus(Lanes a, Lanes b) { return a + b; }
inline Lanes right(Lanes a, Lanes by) { return a >> by; }
inline Lanes left(Lanes a) { return a << (kMassBits - 30); }
#endif

uint32_t block_keys(const float* logits, int count, float temperature, uint32_t* keys) {
  float values[kSamplingBlock];
  if (temperature == 1.0f) {
    for (int i = 0; i < count; ++i) keys[i] = ordered_key(logits[i]);
  } else {
    for (int i = 0; i < count; ++i) values[i] = logits[i] / temperature;
    for (int i = 0; i < count; ++i) keys[i] = ordered_key(values[i]);
  }
  uint32_t top = 0;
  for (int i = 0; i < count; ++i) top = keys[i] > top ? keys[i] : top;
  return top;
}

// power_at() and mass_from() of sampling_rule.cuh, a weight a lane. The products read the low halves of their lanes.
inline Lanes masses_at(Lanes distance) {
  Lanes power = all(kExp2Coefficients[7]);
  for (int i = 6; i >= 0; --i) power = minus(all(kExp2Coefficients[i]), product_high(distance, power));
  return right(plus(right(left(power), right(distance, all(32))), all(1)), all(1));
}

uint64_t block_masses(const uint32_t* keys, int count, double maximum, uint64_t* masses) {
  constexpr uint64_t kNothing = uint64_t(63) << 32;  // shifts every bit of a weight out
  uint64_t distances[kSamplingBlock];
  for (int i = 0; i < count; ++i) {
    uint64_t distance;
    const bool weighs = octaves_below(value_of(keys[i]), maximum, distance);
    distances[i] = weighs ? distance : kNothing;
  }
  for (int i = count; i % kLanes != 0; ++i) distances[i] = kNothing;
  for (int i = 0; i < count; i += kLanes) store(masses + i, masses_at(load(distances + i)));
  uint64_t sum = 0;
  for (int i = 0; i < count; ++i) sum += masses[i];
  return sum;
}

void block_apply(float* logits, int count, float temperature, const RowPlan& plan, uint32_t first, float mask) {
  const uint32_t cut = plan.cut;
  const uint32_t first_tie = plan.first_tie;
  for (int i = 0; i < count; ++i) {
    const float value = logits[i] / temperature;  // by 1 it is the value itself, to the bit
    const uint32_t key = ordered_key(value);
    const bool above = key > cut;
    const bool tied = key == cut;
    const bool late = first + static_cast<uint32_t>(i) >= first_tie;
    logits[i] = above | (tied & late) ? value : mask;
  }
}

}  // namespace

const SamplingBlocks SM70_SAMPLING_BLOCKS = {block_keys, block_masses, block_apply};

}  // namespace sm70
