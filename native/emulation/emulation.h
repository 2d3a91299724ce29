// Makes a kernel callable by name with the argument array of cuLaunchKernel.
#ifndef SM70_EMULATION_EMULATION_H_
#define SM70_EMULATION_EMULATION_H_

#include <cstddef>
#include <type_traits>
#include <utility>

namespace sm70emu {

struct Entry {
  Entry(const char* name, void (*call)(void**));
  void (*call)(void**);
};

template <auto Function>
struct Unpack;

template <typename... Parameters, void (*Function)(Parameters...)>
struct Unpack<Function> {
  static void call(void** arguments) { call_indexed(arguments, std::index_sequence_for<Parameters...>{}); }

 private:
  template <size_t... I>
  static void call_indexed(void** arguments, std::index_sequence<I...>) {
    Function(*static_cast<std::remove_reference_t<Parameters>*>(arguments[I])...);
  }
};

}  // namespace sm70emu

#define SM70_EMULATE(kernel) static const sm70emu::Entry entry_##kernel(#kernel, &sm70emu::Unpack<&kernel>::call)

#endif  // SM70_EMULATION_EMULATION_H_
