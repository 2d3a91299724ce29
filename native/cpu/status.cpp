#include "status.h"

#include <cstdarg>
#include <cstdio>

#include "capability.h"

namespace sm70 {
namespace {
thread_local char g_message[512] = "";
thread_local int g_code = kOk;
}  // namespace

int fail(Status status, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(g_message, sizeof g_message, format, arguments);
  va_end(arguments);
  g_code = status;
  return status;
}

}  // namespace sm70

// Words of the last failed call of this thread.
SM70_EXPORT const char* sm70_last_error() { return sm70::g_message; }
// Status of the last failed call of this thread.
SM70_EXPORT int sm70_last_error_code() { return sm70::g_code; }
