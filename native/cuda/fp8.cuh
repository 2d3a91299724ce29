// FP8 codes: exact decoding of all 256 codes to FP16, and encoding with round to nearest even, saturation to the
// largest finite magnitude and one NaN code (0x7F).
#ifndef SM70_CUDA_FP8_CUH_
#define SM70_CUDA_FP8_CUH_

#include "device.cuh"

struct E4M3 {
  // Two codes, in bytes 0 and 2 of `codes` (the others are ignored), to two halves.
  // Exponent and mantissa land in a half's as they are, so the value is 2^-8 of the right one, subnormals included.
  __device__ static __half2 decode_pair(uint32_t codes) {
    const uint32_t bits = ((codes & 0x00800080u) << 8) | ((codes & 0x007f007fu) << 7);
    return __hmul2(half2_from_bits(bits), half2_from_bits(0x5c005c00u));  // 256
  }

  // Four codes to four halves in order; the two NaN codes, which decode_pair reads as +-480, become NaN.
  __device__ static uint2 decode4(uint32_t codes) {
    const uint32_t even = half2_bits(decode_pair(codes));      // codes 0, 2
    const uint32_t odd = half2_bits(decode_pair(codes >> 8));  // codes 1, 3
    uint2 out = make_uint2((even & 0xffffu) | (odd << 16), (even >> 16) | (odd & 0xffff0000u));
    if ((all_ones(codes) & 0x80808080u) != 0) mark_nans(out, codes);
    return out;
  }

  // Sixteen codes to halves of 2^-8 of their values (exact), NaN codes to NaN.
  __device__ static void decode16_small(const uint4& codes, uint4& low, uint4& high) {
    uint32_t nan = 0;  // the top bit of a byte, if a code there is a NaN
    uint2 a = decode4_small(codes.x, nan), b = decode4_small(codes.y, nan), c = decode4_small(codes.z, nan),
          d = decode4_small(codes.w, nan);
    if ((nan & 0x80808080u) != 0) {
      mark_nans(a, codes.x);
      mark_nans(b, codes.y);
      mark_nans(c, codes.z);
      mark_nans(d, codes.w);
    }
    low = make_uint4(a.x, a.y, b.x, b.y);
    high = make_uint4(c.x, c.y, d.x, d.y);
  }

  __device__ static uint8_t encode(float value) {
    const uint32_t bits = __float_as_uint(value);
    const uint32_t sign = (bits >> 24) & 0x80u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7f;
    if (magnitude >= 0x43e80000u) return static_cast<uint8_t>(sign | 0x7e);  // 464, the tie of 448 and 480, and above
    if (magnitude < 0x3c800000u) {                                           // below 2^-6: a multiple of 2^-9
      // Adding 2^14 leaves a unit in the last place of 2^-9, so the addition itself rounds to nearest even.
      const float shifted = __fadd_rn(__uint_as_float(magnitude), 16384.0f);
      return static_cast<uint8_t>(sign | (__float_as_uint(shifted) - 0x46800000u));
    }
    // Keep three mantissa bits, nearest even: a carry runs into the exponent, as it should.
    const uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
    return static_cast<uint8_t>(sign | ((rounded >> 20) - (120u << 3)));
  }

 private:
  // Four codes at a time: the upper byte of a half is the sign and six bits of the code, the lower byte the last bit.
  __device__ static uint2 decode4_small(uint32_t codes, uint32_t& nan) {
    const uint32_t magnitude = codes & 0x7f7f7f7fu;
    nan |= magnitude + 0x01010101u;
    const uint32_t upper = (codes & 0x80808080u) | ((magnitude >> 1) & ~0x80808080u);
    const uint32_t lower = (codes << 7) & 0x80808080u;
    return make_uint2(__byte_perm(lower, upper, 0x5140), __byte_perm(lower, upper, 0x7362));
  }

  // The top bit of each byte says whether that code is a NaN.
  __device__ static uint32_t all_ones(uint32_t codes) { return (codes & 0x7f7f7f7fu) + 0x01010101u; }

  __device__ static void mark_nans(uint2& halves, uint32_t codes) {
    halves.x = nan_if_all_ones(halves.x, codes & 0xffffu);
    halves.y = nan_if_all_ones(halves.y, codes >> 16);
  }

  __device__ static uint32_t nan_if_all_ones(uint32_t pair, uint32_t codes) {
    if ((codes & 0x7fu) == 0x7fu) pair |= 0x7fffu;
    if ((codes & 0x7f00u) == 0x7f00u) pair |= 0x7fff0000u;
    return pair;
  }
};

struct E5M2 {
  // A truncated half: the code is the half's upper byte.
  __device__ static uint2 decode4(uint32_t codes) {
    return make_uint2(__byte_perm(codes, 0, 0x1404), __byte_perm(codes, 0, 0x3424));
  }

  __device__ static void decode16(const uint4& codes, uint4& low, uint4& high) {
    const uint2 a = decode4(codes.x), b = decode4(codes.y), c = decode4(codes.z), d = decode4(codes.w);
    low = make_uint4(a.x, a.y, b.x, b.y);
    high = make_uint4(c.x, c.y, d.x, d.y);
  }

  __device__ static uint8_t encode(float value) {
    const uint32_t bits = __float_as_uint(value);
    const uint32_t sign = (bits >> 24) & 0x80u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7f;
    if (magnitude >= 0x47700000u) return static_cast<uint8_t>(sign | 0x7b);  // 61440, the tie above 57344, and above
    if (magnitude < 0x38800000u) {                                           // below 2^-14: a multiple of 2^-16
      const float shifted = __fadd_rn(__uint_as_float(magnitude), 128.0f);
      return static_cast<uint8_t>(sign | (__float_as_uint(shifted) - 0x43000000u));
    }
    const uint32_t rounded = magnitude + 0xfffffu + ((magnitude >> 21) & 1u);
    return static_cast<uint8_t>(sign | ((rounded >> 21) - (112u << 2)));
  }
};

#endif  // SM70_CUDA_FP8_CUH_
