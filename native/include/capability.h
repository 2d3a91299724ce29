// Capability numbers: one integer an op, raised whenever the meaning of its C function changes.
//
// A source file of an op says, at namespace scope:
//     static sm70::Capability rms_norm_cpu("rms_norm_cpu", 1);
// Python asks sm70_capability("rms_norm_cpu") and refuses a library whose number is too old.
#ifndef SM70_CAPABILITY_H_
#define SM70_CAPABILITY_H_

#define SM70_EXPORT extern "C" __attribute__((visibility("default")))

namespace sm70 {

// Links itself into the library's list when the library is loaded.
struct Capability {
  Capability(const char* op, int number);
  const char* op;
  int number;
  const Capability* next;
};

}  // namespace sm70

#endif  // SM70_CAPABILITY_H_
