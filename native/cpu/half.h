// IEEE half precision in plain integers, for the path that may use no F16C instruction.
#ifndef SM70_CPU_HALF_H_
#define SM70_CPU_HALF_H_

#include <cstdint>

namespace sm70 {
namespace {

inline float float_of_bits(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

inline uint32_t bits_of_float(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, 4);
  return bits;
}

// Exact; a signalling NaN becomes quiet, as F16C does it.
inline float half_to_float(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7FFFu;
  if (magnitude >= 0x7C00u) {
    const uint32_t quiet = magnitude > 0x7C00u ? 0x400000u : 0;
    return float_of_bits(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13 | quiet);
  }
  // The half's fields in a float's places read as value * 2^-112, subnormals too.
  const float scaled = float_of_bits(magnitude << 13) * float_of_bits(0x77800000u);  // 2^112
  return float_of_bits(sign | bits_of_float(scaled));
}

// To nearest, ties to even; beyond 65504 to infinity; NaN stays NaN with its upper payload, quiet.
inline uint16_t float_to_half(float value) {
  const uint32_t all = bits_of_float(value);
  const uint32_t sign = (all >> 16) & 0x8000u;
  const uint32_t magnitude = all & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u | (magnitude >> 13 & 0x3FFu));
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7C00u);  // 65536 and more
  if (magnitude < 0x38800000u) {                                               // below 2^-14: subnormal
    // Adding 0.5 puts the unit of the sum at 2^-24, the half's subnormal step; the processor rounds.
    const float shifted = float_of_bits(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (bits_of_float(shifted) - 0x3F000000u));
  }
  const uint32_t odd = magnitude >> 13 & 1;
  const uint32_t rounded = magnitude + 0xFFFu + odd - 0x38000000u;  // exponent bias 127 -> 15; may carry to infinity
  return static_cast<uint16_t>(sign | rounded >> 13);
}

}  // namespace
}  // namespace sm70

#endif  // SM70_CPU_HALF_H_
