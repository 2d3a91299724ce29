// The cutoff rule that host and device code share, bit for bit: order-preserving keys, integer weights, the nucleus
// limit. `engine/ops/sampling_reference.py` states the definitions. Included by sampling.cu (NVRTC) and by the C++
// twins.
#ifndef SM70_CUDA_SAMPLING_RULE_CUH_
#define SM70_CUDA_SAMPLING_RULE_CUH_

#ifdef __CUDACC_RTC__
#include "device.cuh"
#define SM70_BOTH __device__ inline
#else
#include <cstdint>
#include <cstring>
// Static: each host file is compiled for its own instruction set, and one of them must not lend its copy to another.
#define SM70_BOTH static inline
#endif

namespace sm70 {

// Columns of a plan row and its flags, as in engine.ops.sampling_reference.
struct RowPlan {
  uint32_t threshold;  // key of the k-th largest value; 0: top-k off
  uint32_t cut;        // smaller keys go, larger ones stay
  uint32_t first_tie;  // of the keys equal to `cut`, ids from here on stay; 0 where all do
  uint32_t flags;
};

enum RowFlag : uint32_t { kNan = 1, kPositiveInfinity = 2, kNothingFinite = 4, kBadParameter = 8, kGreedy = 16 };
constexpr uint32_t kFault = kNan | kPositiveInfinity | kNothingFinite | kBadParameter;

constexpr uint32_t kKeyNegativeInfinity = 0x007fffffu;
constexpr uint32_t kKeyPositiveInfinity = 0xff800000u;
constexpr uint32_t kKeyNan = 0xffffffffu;

constexpr int kMassBits = 40;
constexpr uint64_t kMassOne = uint64_t(1) << kMassBits;
// Distances are counted in units of 2**-32 of a factor two; from this many on, a weight rounds to nothing.
constexpr int kMassOctaves = kMassBits + 2;

// 2**31 times the coefficients of the polynomial for 2**-f on [0, 1), with alternating signs.
constexpr uint32_t kExp2Coefficients[8] = {2147483648u, 1488522236u, 515882469u, 119193747u,
                                           20652244u,   2856024u,    319744u,    24275u};

SM70_BOTH uint32_t bits_of(float value) {
#ifdef __CUDACC_RTC__
  return __float_as_uint(value);
#else
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
#endif
}

SM70_BOTH float float_of(uint32_t bits) {
#ifdef __CUDACC_RTC__
  return __uint_as_float(bits);
#else
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
#endif
}

// Unsigned order of keys = order of values; -0 counts as +0, every NaN is the top key.
SM70_BOTH uint32_t ordered_key(float value) {
  uint32_t bits = bits_of(value);
  bits = bits == 0x80000000u ? 0u : bits;
  const uint32_t key = bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
  return (bits & 0x7fffffffu) > 0x7f800000u ? kKeyNan : key;
}

// The value of a key that is no NaN's.
SM70_BOTH float value_of(uint32_t key) { return float_of((key & 0x80000000u) != 0 ? key ^ 0x80000000u : ~key); }

// Keeps a compiler that fuses multiply and add (the emulation of the kernels is built that way) from doing it here.
SM70_BOTH double apart(double value) {
#ifdef SM70_EMULATED
  asm volatile("" : "+x"(value));
#endif
  return value;
}

// How far a weight is below the largest: log2(e) * (maximum - value) in units of 2**-32, rounded to nearest even, as
// the low 38 bits of a double's mantissa. False where the weight is nothing at all.
SM70_BOTH bool octaves_below(float value, double maximum, uint64_t& distance) {
  constexpr double kLog2E = 0x1.71547652b82fep+0 * 4294967296.0;
  constexpr double kLimit = kMassOctaves * 4294967296.0;
  constexpr double kToInteger = 6755399441055744.0;  // 1.5 * 2**52: adding it rounds to an integer in the low bits
#ifdef __CUDACC_RTC__
  const double scaled = __dmul_rn(__dsub_rn(maximum, static_cast<double>(value)), kLog2E);
  distance = static_cast<uint64_t>(__double_as_longlong(__dadd_rn(scaled, kToInteger))) & 0x3fffffffffull;
#else
  const double scaled = (maximum - static_cast<double>(value)) * kLog2E;
  const double rounded = apart(scaled) + kToInteger;
  std::memcpy(&distance, &rounded, sizeof(distance));
  distance &= 0x3fffffffffull;
#endif
  return scaled < kLimit;
}

SM70_BOTH uint32_t multiply_high(uint32_t a, uint32_t b) {
#ifdef __CUDACC_RTC__
  return __umulhi(a, b);
#else
  return static_cast<uint32_t>((static_cast<uint64_t>(a) * b) >> 32);
#endif
}

// 2**31 * 2**-(fraction / 2**32), by a polynomial in 31 bits.
SM70_BOTH uint32_t power_at(uint32_t fraction) {
  uint32_t power = kExp2Coefficients[7];
#ifdef __CUDACC_RTC__
#pragma unroll
#endif
  for (int i = 6; i >= 0; --i) power = kExp2Coefficients[i] - multiply_high(fraction, power);
  return power;
}

// `power` of 2**31, halved `octaves` (0 to 63) times, of 2**40, rounded.
SM70_BOTH uint64_t mass_from(uint32_t power, uint64_t octaves) {
  return ((static_cast<uint64_t>(power) << (kMassBits - 30) >> octaves) + 1) >> 1;
}

// Integer weight of `value` in a row whose largest is `maximum`: round(2**40 * exp(value - maximum)).
SM70_BOTH uint64_t mass_of(float value, double maximum) {
  uint64_t distance;
  if (!octaves_below(value, maximum, distance)) return 0;
  return mass_from(power_at(static_cast<uint32_t>(distance)), distance >> 32);
}

// floor(a * b / 2**64).
SM70_BOTH uint64_t high_product(uint64_t a, uint64_t b) {
#ifdef __CUDACC_RTC__
  return __umul64hi(a, b);
#else
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
#endif
}

// floor(a * b / 2**shift) for shift in 1..63 and 64..127, with whether anything was cut off.
SM70_BOTH uint64_t multiply_shift(uint64_t a, uint64_t b, int shift, bool& inexact) {
  const uint64_t low = a * b;
  const uint64_t high = high_product(a, b);
  if (shift >= 128) {
    inexact = (low | high) != 0;
    return 0;
  }
  if (shift >= 64) {
    const int rest = shift - 64;
    inexact = low != 0 || (rest != 0 && (high << (64 - rest)) != 0);
    return high >> rest;
  }
  inexact = (low << (64 - shift)) != 0;
  return (high << (64 - shift)) | (low >> shift);
}

// ceil(top_p * total): an entry stays while the mass ahead of it is below this. top_p is in (0, 1), total below 2**62.
SM70_BOTH uint64_t nucleus_limit(float top_p, uint64_t total) {
  const uint32_t bits = bits_of(top_p);
  const int exponent = static_cast<int>(bits >> 23);
  const uint64_t mantissa = (bits & 0x7fffffu) | (exponent != 0 ? 0x800000u : 0u);
  bool inexact;
  const uint64_t whole = multiply_shift(total, mantissa, 150 - (exponent != 0 ? exponent : 1), inexact);
  return whole + (inexact ? 1 : 0);
}

// The flag of a row from the largest key of its values after temperature; 0 for an ordinary row.
SM70_BOTH uint32_t row_fault(uint32_t top_key) {
  if (top_key == kKeyNan) return kNan;
  if (top_key == kKeyPositiveInfinity) return kPositiveInfinity;
  return top_key == kKeyNegativeInfinity ? kNothingFinite : 0u;
}

// kBadParameter, kGreedy or 0. Written so that NaN is bad.
SM70_BOTH uint32_t parameter_flags(float top_p, float temperature) {
  if (!(top_p > 0.0f && top_p <= 1.0f)) return kBadParameter;
  if (!(temperature >= 0.0f && temperature <= 3.402823466e38f)) return kBadParameter;
  return temperature == 0.0f ? kGreedy : 0u;
}

SM70_BOTH bool stays(uint32_t key, uint32_t id, const RowPlan& plan) {
  return key > plan.cut || (key == plan.cut && id >= plan.first_tie);
}

}  // namespace sm70

#endif  // SM70_CUDA_SAMPLING_RULE_CUH_
