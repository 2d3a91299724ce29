// Float32 to FP8 codes in plain integers: nearest, ties to even, saturated to the largest finite number.
#ifndef SM70_CPU_FP8_H_
#define SM70_CPU_FP8_H_

#include <cstdint>

#include "cpu/half.h"

namespace sm70 {
namespace {

constexpr uint8_t kFp8Nan = 0x7F;  // the one NaN that is ever written, in both formats

// kMantissa bits after the point, exponent bias kBias, largest finite code kLargest.
template <int kMantissa, int kBias, uint8_t kLargest>
inline uint8_t to_fp8(float value) {
  const uint32_t all = bits_of_float(value), magnitude = all & 0x7FFFFFFFu;
  const uint8_t sign = static_cast<uint8_t>(all >> 24 & 0x80u);
  if (magnitude > 0x7F800000u) return kFp8Nan;
  constexpr int kDropped = 23 - kMantissa;
  constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias);
  // The largest finite number in a float's fields; what lies beyond rounds to it or past it.
  if (magnitude >= (kRebias << 23) + (static_cast<uint32_t>(kLargest) << kDropped)) return sign | kLargest;
  if (magnitude < (kRebias + 1) << 23) {
    // Subnormal: at 2^(24 - kBias - kMantissa) a float's unit is the format's smallest step, and the processor rounds.
    const uint32_t anchor = (kRebias + 24 - kMantissa) << 23;
    const float sum = float_of_bits(magnitude) + float_of_bits(anchor);
    return sign | static_cast<uint8_t>(bits_of_float(sum) - anchor);
  }
  const uint32_t odd = magnitude >> kDropped & 1;
  const uint32_t rounded = magnitude + (1u << (kDropped - 1)) - 1 + odd - (kRebias << 23);
  return sign | static_cast<uint8_t>(rounded >> kDropped);
}

inline uint8_t to_e4m3(float value) { return to_fp8<3, 7, 0x7E>(value); }
inline uint8_t to_e5m2(float value) { return to_fp8<2, 15, 0x7B>(value); }

}  // namespace
}  // namespace sm70

#endif  // SM70_CPU_FP8_H_
