#include "capability.h"

#include <cstring>
#include <string>

namespace sm70 {

namespace {
// Constant-initialised, so registrars of other files may run before anything of this one.
const Capability* g_head = nullptr;
}  // namespace

Capability::Capability(const char* op, int number) : op(op), number(number), next(g_head) { g_head = this; }

}  // namespace sm70

// Capability number of an op, 0 when the library does not know it.
SM70_EXPORT int sm70_capability(const char* op) {
  for (const sm70::Capability* at = sm70::g_head; at != nullptr; at = at->next)
    if (std::strcmp(at->op, op) == 0) return at->number;
  return 0;
}

// Every op of this library, one `op=number` a line; for the build record.
SM70_EXPORT const char* sm70_capability_list() {
  static const std::string text = [] {
    std::string lines;
    for (const sm70::Capability* at = sm70::g_head; at != nullptr; at = at->next)
      lines += std::string(at->op) + "=" + std::to_string(at->number) + "\n";
    return lines;
  }();
  return text.c_str();
}
