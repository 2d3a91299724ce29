#include <atomic>

#include "capability.h"
#include "cpu/kernels.h"

namespace sm70 {
namespace {

int probe() {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (!avx2) return 0;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return avx512 ? 2 : 1;
}

std::atomic<int> g_isa{-1};

}  // namespace

int best_isa() {
  static const int best = probe();
  return best;
}

int isa() {
  const int chosen = g_isa.load(std::memory_order_relaxed);
  return chosen < 0 ? best_isa() : chosen;
}

const Kernels& kernels() {
  static const Kernels* const tables[] = {&kKernelsPortable, &kKernelsAvx2, &kKernelsAvx512};
  return *tables[isa()];
}

}  // namespace sm70

SM70_EXPORT int sm70_best_isa() { return sm70::best_isa(); }
SM70_EXPORT int sm70_isa() { return sm70::isa(); }
// For tests that compare bits. Python checks that the machine has it.
SM70_EXPORT void sm70_set_isa(int isa) { sm70::g_isa.store(isa, std::memory_order_relaxed); }
