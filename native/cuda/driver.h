// The device half of the library: embedded images, loaded and launched through the CUDA driver API, which is opened at
// run time (libcuda.so.1) so that the library builds and loads where there is no GPU.
//
// To add a kernel
//   1. native/cuda/<group>.cu: SM70_KERNEL((threads), name, parameters...) { ... }, see device.cuh. One image a file.
//      The bound on threads is required: occupancy is computed from it.
//   2. native/cuda/<group>_launch.cpp: one `static sm70::Kernel k("<group>", "name")` per kernel (third argument: the
//      largest dynamic shared size it is ever launched with, in bytes), one static sm70::Capability("<op>_cuda", 1) and
//      one exported function
//          SM70_EXPORT int sm70_<op>_cuda(..., int device, void* stream, char* err, int64_t err_len)
//      that checks its arguments, then returns k.launch(grid, block, shared, {device, stream}, error, args...).
//   3. native/ops_cuda.py: the ctypes signature and a typed function of the op's name.
// `python -m native.build` finds the new files by their names.
//
// A launch never synchronises, allocates or loads a module, so it may be captured in a CUDA graph. Modules are loaded
// by sm70_cuda_load(device), once a device, before the first launch; a launch on a device that was not loaded is an
// error.
#ifndef SM70_CUDA_DRIVER_H_
#define SM70_CUDA_DRIVER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "capability.h"

namespace sm70 {

// One compiled .cu file; the arrays are defined by the generated source the build writes.
struct Image {
  const char* name;
  const unsigned char* cubin;
  const unsigned char* cubin_end;
  const unsigned char* ptx;  // NUL-terminated
  const unsigned char* ptx_end;
};
extern const Image images[];
extern const int image_count;

constexpr int kMaxDevices = 64;
constexpr unsigned kMaxDynamicShared = 96 * 1024;  // SM70's opt-in limit

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// Where an exported function writes its message: the caller's buffer.
struct Error {
  char* text;
  int64_t size;
  // Writes a printf-style message and returns 1, the failure status of the C ABI.
  int fail(const char* format, ...) __attribute__((format(printf, 2, 3)));
};

// Where to launch: the device the tensors live on and the caller's stream (a CUstream; null is the default stream).
struct Where {
  int device;
  void* stream;
};

// A kernel of an embedded image. Objects are static; they register themselves when the library is loaded.
class Kernel {
 public:
  Kernel(const char* image, const char* name, unsigned max_dynamic_shared = 0);

  // Launches in the primary context of `where.device`. Returns 0, or 1 with a message in `error`.
  // A zero-sized grid launches nothing and succeeds. Arguments are passed by their exact C++ types, which must be the
  // kernel's parameter types.
  template <typename... Args>
  int launch(Dim3 grid, Dim3 block, unsigned shared, Where where, Error& error, Args... args) const {
    void* pointers[] = {static_cast<void*>(&args)..., nullptr};
    return launch_raw(grid, block, shared, where, error, pointers);
  }

  // Blocks that fit on one multiprocessor at a time; at least 1. Always asked for the same size, so the driver is asked
  // once a device. May be called while a stream captures.
  int resident_blocks(int device, unsigned threads, unsigned shared) const;

  const char* image() const { return image_; }
  const char* name() const { return name_; }
  unsigned max_dynamic_shared() const { return max_dynamic_shared_; }
  Kernel* next() const { return next_; }
  void set_function(int device, void* function) { functions_[device] = function; }

 private:
  int launch_raw(Dim3 grid, Dim3 block, unsigned shared, Where where, Error& error, void** args) const;

  const char* image_;
  const char* name_;
  unsigned max_dynamic_shared_;
  Kernel* next_;
  void* functions_[kMaxDevices] = {};
  mutable std::atomic<int> resident_[kMaxDevices] = {};  // 0: not asked yet
};

Kernel* first_kernel();

// Streaming multiprocessors of a loaded device.
int multiprocessors(int device);

inline bool aligned(const void* pointer, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes == 0; }

}  // namespace sm70

#endif  // SM70_CUDA_DRIVER_H_
