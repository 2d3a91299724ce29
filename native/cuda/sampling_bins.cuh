// Coarse masses: one 32-bit addition an entry in place of the three that an exact sum of 41 bits takes.
//
// The mass of an entry is `power` (2^30 to 2^31) halved once an octave. A bin lies within one octave, so it can add up
// the upper bits of the powers, and what those leave out is less than one unit an entry. The edge of the nucleus is
// then known to be in one bin or, seldom, in a few; the entries of those are collected and weighed exactly.
#ifndef SM70_CUDA_SAMPLING_BINS_CUH_
#define SM70_CUDA_SAMPLING_BINS_CUH_

#include "sampling_workspace.cuh"

namespace sm70 {

constexpr int kCoarseShift = 17;                            // bits of a power that are left out
constexpr int kLeastCoarse = 1 << (30 - kCoarseShift);      // of an entry; twice it is the most
constexpr int kCoarseBits = kMassBits - 31 + kCoarseShift;  // a unit of octave 0 is 2^kCoarseBits of mass

// What the exact mass of some entries is at least and at most.
struct MassRange {
  uint64_t least, most;
};

// The entries of one bin, from their coarse sum (below 2^37: 2^22 entries of at most 2^14).
SM70_BOTH MassRange mass_range(uint64_t coarse, int octave) {
  const uint64_t entries = coarse / kLeastCoarse;  // no fewer than there are
  if (entries == 0) return {0, 0};
  // Rounding an entry's mass moves it by half a unit of mass at most.
  const uint64_t least = coarse << kCoarseBits >> octave;
  const uint64_t most = ((coarse + entries) << kCoarseBits >> octave) + 1 + entries;
  return {least > entries ? least - entries : 0, most};
}

}  // namespace sm70

#endif  // SM70_CUDA_SAMPLING_BINS_CUH_
