// A list of bound ops run by one call, and the sizes of the ops' argument records.
#include <cstring>

#include "op.h"

namespace sm70 {
namespace {
const ArgsSize* g_sizes = nullptr;
Capability program("program", 1);
}  // namespace

ArgsSize::ArgsSize(const char* op, std::size_t bytes) : op(op), bytes(bytes), next(g_sizes) { g_sizes = this; }

}  // namespace sm70

// Bytes of the argument record of an op, 0 when the library does not know it.
SM70_EXPORT std::int64_t sm70_args_size(const char* op) {
  for (const sm70::ArgsSize* at = sm70::g_sizes; at != nullptr; at = at->next)
    if (std::strcmp(at->op, op) == 0) return static_cast<std::int64_t>(at->bytes);
  return 0;
}

namespace {
struct Step {
  int (*function)(const void*);
  const void* args;
};
}  // namespace

// Runs `count` steps in order; stops at the first that fails and returns its status.
SM70_EXPORT int sm70_program_run(const Step* steps, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    if (const int status = steps[i].function(steps[i].args)) return status;
  return sm70::kOk;
}
