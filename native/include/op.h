// The shape of every CPU op: one record of eight-byte fields in, a status out.
//
//     struct SiluMulArgs { const float* gate_up; ... int64_t m; };
//     SM70_OP(silu_mul_cpu, 1, SiluMulArgs) { ...; return sm70::kOk; }
//
// defines sm70_silu_mul_cpu(const SiluMulArgs* args), its capability number, and the record's size, which Python
// compares with its own before the first call.
#ifndef SM70_OP_H_
#define SM70_OP_H_

#include <cstddef>
#include <cstdint>

#include "capability.h"
#include "status.h"

namespace sm70 {

// Links itself into the list that sm70_args_size() searches.
struct ArgsSize {
  ArgsSize(const char* op, std::size_t bytes);
  const char* op;
  std::size_t bytes;
  const ArgsSize* next;
};

}  // namespace sm70

#define SM70_OP(name, number, Args)                                    \
  static_assert(sizeof(Args) % 8 == 0, "fields are eight bytes wide"); \
  static sm70::Capability name##_capability(#name, number);            \
  static sm70::ArgsSize name##_args_size(#name, sizeof(Args));         \
  SM70_EXPORT int sm70_##name([[maybe_unused]] const Args* args)

#endif  // SM70_OP_H_
