// Bins of a row's entries by their distance from its largest value, and coarse masses: what a first look at the row
// needs to say in which few bins an edge is. Only the entries of those are weighed one by one.
//
// A bin is a range of values, since the position is a monotone function of the value; all of it lies in one octave
// (halving of the mass). How many bins an octave has follows from the row: flat rows have narrow bins.
//
// The coarse mass of an entry is its mass in units of 2**-14 of the octave's largest, rounded down, by the device's
// approximate power of two. The exact mass is between one unit less and two units more than that: the position is off
// by less than 2.5 * 2**-24 of at most kMassOctaves, the power by 2**-22 of itself, together less than a tenth of a
// unit.
#ifndef SM70_CUDA_SAMPLING_BINS_CUH_
#define SM70_CUDA_SAMPLING_BINS_CUH_

#include "sampling_device.cuh"

namespace sm70 {

constexpr int kCoarseShift = 14;
constexpr int kLeastCoarse = (1 << (kCoarseShift - 1)) - 1;  // of an entry
constexpr int kUnitBits = kMassBits - kCoarseShift;          // a unit of octave 0 is 2**kUnitBits of mass
constexpr uint32_t kFewestBinBits = 5;                       // kMassOctaves of 32 bins are kMassBins
constexpr uint32_t kMostBinBits = 20;
constexpr float kFloorBase = 8388608.0f;  // 2**23: a sum with it, rounded down, is an integer in the low bits
constexpr uint32_t kFloorBits = 0x4b000000u;

__device__ inline float power_of_two(float exponent) {
#ifdef SM70_EMULATED
  return std::exp2(exponent);
#else
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
  return power;
#endif
}

struct BinScale {
  float top;
  float bins_a_nat;
  float octaves_a_bin;

  __device__ BinScale(uint32_t top_key, uint32_t bits) {
    top = value_of(top_key);
    octaves_a_bin = __uint_as_float((127u - bits) << 23);
    bins_a_nat = __fmul_rn(1.44269504f, __uint_as_float((127u + bits) << 23));
  }
  // Of a value that is not NaN and at most the row's largest; infinite for -inf.
  __device__ float position(float value) const { return __fmul_rn(__fsub_rn(top, value), bins_a_nat); }
  // Coarse mass of an entry at a position below kMassBins.
  __device__ uint32_t coarse(float position) const {
    const float octaves = __fmul_rn(position, octaves_a_bin);
    const float whole = __fsub_rn(__fadd_rd(octaves, kFloorBase), kFloorBase);
    const float power = power_of_two(__fsub_rn(whole, octaves));
    return __float_as_uint(__fmaf_rd(power, static_cast<float>(1 << kCoarseShift), kFloorBase)) - kFloorBits;
  }
};

// The bin of a position below kMassBins; kMassBins for any other.
__device__ inline uint32_t bin_of(float position) {
  return position < kMassBins ? __float_as_uint(__fadd_rd(position, kFloorBase)) - kFloorBits : kMassBins;
}

// As many bins an octave as let the row's smallest value still have one.
__device__ inline uint32_t bin_bits(uint32_t top_key, uint32_t bottom_key) {
  const float octaves = BinScale(top_key, 0).position(value_of(bottom_key));
  uint32_t bits = kFewestBinBits;
  while (bits < kMostBinBits && octaves * __uint_as_float((128u + bits) << 23) < kMassBins) ++bits;
  return bits;
}

// What the exact mass of some entries is at least and at most.
struct MassRange {
  uint64_t least, most;
};

// Of `entries` (no fewer than there are) of one bin, from their coarse sum (below 2^37: 2^22 entries of at most 2^14).
// Rounding an entry's mass moves it by half a unit of mass at most.
__device__ inline MassRange mass_range(uint64_t coarse, uint64_t entries, uint32_t octave) {
  if (entries == 0) return {0, 0};
  const uint64_t least = coarse > entries ? (coarse - entries) << kUnitBits >> octave : 0;
  const uint64_t most = ((coarse + 2 * entries) << kUnitBits >> octave) + 1 + entries;
  return {least > entries ? least - entries : 0, most};
}

}  // namespace sm70

#endif  // SM70_CUDA_SAMPLING_BINS_CUH_
