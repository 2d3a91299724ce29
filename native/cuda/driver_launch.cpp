#include <dlfcn.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "cuda/driver.h"

namespace sm70 {
namespace {

// The part of the driver API this library uses; declared here because its header is not among the packages' headers
// that a host without the CUDA packages has.
using CUresult = int;
using CUdevice = int;
using CUcontext = void*;
using CUmodule = void*;
using CUfunction = void*;
constexpr CUresult kSuccess = 0;
constexpr int kAttributeMajor = 75;
constexpr int kAttributeMinor = 76;
constexpr int kAttributeMultiprocessors = 16;
constexpr int kFunctionMaxDynamicShared = 8;
constexpr int kFunctionSharedCarveout = 9;
constexpr int kCarveoutMaxShared = 100;
constexpr int kJitErrorLog = 5;
constexpr int kJitErrorLogBytes = 6;
constexpr unsigned kDefaultShared = 48 * 1024;

struct Driver {
  CUresult (*init)(unsigned);
  CUresult (*device_count)(int*);
  CUresult (*device_get)(CUdevice*, int);
  CUresult (*device_attribute)(int*, int, CUdevice);
  CUresult (*primary_retain)(CUcontext*, CUdevice);
  CUresult (*context_current)(CUcontext*);
  CUresult (*context_push)(CUcontext);
  CUresult (*context_pop)(CUcontext*);
  CUresult (*module_load)(CUmodule*, const void*, unsigned, int*, void**);
  CUresult (*module_function)(CUfunction*, CUmodule, const char*);
  CUresult (*function_attribute)(CUfunction, int, int);
  CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                     void**);
  CUresult (*occupancy)(int*, CUfunction, int, size_t);
  CUresult (*error_name)(CUresult, const char**);
  CUresult (*error_text)(CUresult, const char**);
};

struct Device {
  CUcontext context = nullptr;
  const char* image_kind = "";  // empty until loaded
  int multiprocessors = 0;
};

Kernel* g_kernels = nullptr;
std::mutex g_mutex;
Driver g_driver;
bool g_driver_ready = false;
Device g_devices[kMaxDevices];

template <typename Function>
bool resolve(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
  return function != nullptr;
}

std::string describe(CUresult status) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (g_driver.error_name(status, &name) != kSuccess || name == nullptr) return "CUDA error " + std::to_string(status);
  g_driver.error_text(status, &text);
  return std::string(name) + " (" + (text != nullptr ? text : "no description") + ")";
}

// Opens libcuda once; the caller holds g_mutex.
int open_driver(Error& error) {
  if (g_driver_ready) return 0;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) return error.fail("no CUDA driver: %s", dlerror());
  Driver& d = g_driver;
  const bool complete =
      resolve(library, "cuInit", d.init) && resolve(library, "cuDeviceGetCount", d.device_count) &&
      resolve(library, "cuDeviceGet", d.device_get) && resolve(library, "cuDeviceGetAttribute", d.device_attribute) &&
      resolve(library, "cuDevicePrimaryCtxRetain", d.primary_retain) &&
      resolve(library, "cuCtxGetCurrent", d.context_current) &&
      resolve(library, "cuCtxPushCurrent_v2", d.context_push) &&
      resolve(library, "cuCtxPopCurrent_v2", d.context_pop) && resolve(library, "cuModuleLoadDataEx", d.module_load) &&
      resolve(library, "cuModuleGetFunction", d.module_function) &&
      resolve(library, "cuFuncSetAttribute", d.function_attribute) && resolve(library, "cuLaunchKernel", d.launch) &&
      resolve(library, "cuOccupancyMaxActiveBlocksPerMultiprocessor", d.occupancy) &&
      resolve(library, "cuGetErrorName", d.error_name) && resolve(library, "cuGetErrorString", d.error_text);
  if (!complete) return error.fail("libcuda.so.1 lacks a function of the driver API: %s", dlerror());
  const CUresult status = d.init(0);
  if (status != kSuccess) return error.fail("cuInit: %s", describe(status).c_str());
  g_driver_ready = true;
  return 0;
}

int load_image(const Image& image, bool native, CUmodule& module, Error& error) {
  const void* data = native ? image.cubin : image.ptx;
  char log[2048] = "";
  int options[] = {kJitErrorLog, kJitErrorLogBytes};
  void* values[] = {log, reinterpret_cast<void*>(static_cast<uintptr_t>(sizeof(log)))};
  const CUresult status = native ? g_driver.module_load(&module, data, 0, nullptr, nullptr)
                                 : g_driver.module_load(&module, data, 2, options, values);
  if (status != kSuccess)
    return error.fail("cuModuleLoadDataEx of image %s (%s): %s %s", image.name,
                      native ? "sm_70 cubin" : "compute_70 PTX", describe(status).c_str(), log);
  return 0;
}

int prepare_kernel(Kernel& kernel, CUmodule module, int device, Error& error) {
  CUfunction function = nullptr;
  CUresult status = g_driver.module_function(&function, module, kernel.name());
  if (status != kSuccess)
    return error.fail("cuModuleGetFunction %s of image %s: %s", kernel.name(), kernel.image(),
                      describe(status).c_str());
  if (kernel.max_dynamic_shared() > kDefaultShared) {
    status =
        g_driver.function_attribute(function, kFunctionMaxDynamicShared, static_cast<int>(kernel.max_dynamic_shared()));
    if (status != kSuccess)
      return error.fail("cuFuncSetAttribute of %s to %u bytes of shared memory: %s", kernel.name(),
                        kernel.max_dynamic_shared(), describe(status).c_str());
    // The driver's guess at the L1/shared split follows one block; these kernels want as many blocks as fit.
    status = g_driver.function_attribute(function, kFunctionSharedCarveout, kCarveoutMaxShared);
    if (status != kSuccess)
      return error.fail("cuFuncSetAttribute of %s (shared carve-out): %s", kernel.name(), describe(status).c_str());
  }
  kernel.set_function(device, function);
  return 0;
}

// Every image and kernel, in the current context.
int load_kernels(int device, bool native, Error& error) {
  std::map<std::string, CUmodule> modules;
  for (int i = 0; i < image_count; ++i)
    if (load_image(images[i], native, modules[images[i].name], error) != 0) return 1;
  for (Kernel* kernel = g_kernels; kernel != nullptr; kernel = kernel->next()) {
    const auto module = modules.find(kernel->image());
    if (module == modules.end())
      return error.fail("kernel %s: the library holds no device image %s; rebuild: python -m native.build",
                        kernel->name(), kernel->image());
    if (prepare_kernel(*kernel, module->second, device, error) != 0) return 1;
  }
  return 0;
}

}  // namespace

int Error::fail(const char* format, ...) {
  if (text != nullptr && size > 0) {
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, static_cast<size_t>(size), format, arguments);
    va_end(arguments);
  }
  return 1;
}

Kernel::Kernel(const char* image, const char* name, unsigned max_dynamic_shared)
    : image_(image), name_(name), max_dynamic_shared_(max_dynamic_shared), next_(g_kernels) {
  g_kernels = this;
}

Kernel* first_kernel() { return g_kernels; }

int multiprocessors(int device) { return device >= 0 && device < kMaxDevices ? g_devices[device].multiprocessors : 0; }

int Kernel::resident_blocks(int device, unsigned threads, unsigned shared) const {
  if (device < 0 || device >= kMaxDevices || functions_[device] == nullptr) return 1;
  int blocks = resident_[device].load(std::memory_order_relaxed);
  if (blocks != 0) return blocks;
  const CUresult status = g_driver.occupancy(&blocks, functions_[device], static_cast<int>(threads), shared);
  if (status != kSuccess || blocks < 1) blocks = 1;
  resident_[device].store(blocks, std::memory_order_relaxed);
  return blocks;
}

int Kernel::launch_raw(Dim3 grid, Dim3 block, unsigned shared, Where where, Error& error, void** args) const {
  if (where.device < 0 || where.device >= kMaxDevices)
    return error.fail("device %d: allowed are 0 to %d", where.device, kMaxDevices - 1);
  CUfunction function = functions_[where.device];
  if (function == nullptr)
    return error.fail("kernel %s is not loaded on device %d: call sm70_cuda_load(%d) first", name_, where.device,
                      where.device);
  if (shared > max_dynamic_shared_)
    return error.fail("kernel %s asked for %u bytes of dynamic shared memory, it declares %u", name_, shared,
                      max_dynamic_shared_);
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return 0;
  CUcontext wanted = g_devices[where.device].context;
  CUcontext current = nullptr;
  g_driver.context_current(&current);
  const bool switched = current != wanted;
  if (switched) {
    const CUresult status = g_driver.context_push(wanted);
    if (status != kSuccess) return error.fail("cuCtxPushCurrent: %s", describe(status).c_str());
  }
  const CUresult status =
      g_driver.launch(function, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared, where.stream, args, nullptr);
  if (switched) g_driver.context_pop(&current);
  if (status != kSuccess)
    return error.fail("cuLaunchKernel %s grid (%u, %u, %u) block (%u, %u, %u) shared %u: %s", name_, grid.x, grid.y,
                      grid.z, block.x, block.y, block.z, shared, describe(status).c_str());
  return 0;
}

}  // namespace sm70

// Number of CUDA devices into `count`; fails with the reason when there is no driver.
SM70_EXPORT int sm70_cuda_device_count(int* count, char* err, int64_t err_len) {
  sm70::Error error{err, err_len};
  const std::lock_guard<std::mutex> lock(sm70::g_mutex);
  if (sm70::open_driver(error) != 0) return 1;
  const int status = sm70::g_driver.device_count(count);
  return status == sm70::kSuccess ? 0 : error.fail("cuDeviceGetCount: %s", sm70::describe(status).c_str());
}

// Loads every kernel on `device` (in its primary context, the one torch uses). May take seconds where the driver has to
// compile PTX. Loading twice does nothing. Not to be called while a stream is capturing.
SM70_EXPORT int sm70_cuda_load(int device, char* err, int64_t err_len) {
  using namespace sm70;
  Error error{err, err_len};
  if (device < 0 || device >= kMaxDevices) return error.fail("device %d: allowed are 0 to %d", device, kMaxDevices - 1);
  const std::lock_guard<std::mutex> lock(g_mutex);
  Device& state = g_devices[device];
  if (state.image_kind[0] != '\0') return 0;
  if (open_driver(error) != 0) return 1;
  if (image_count == 0)
    return error.fail(
        "the library holds no device images (its build record says why); rebuild: python -m native.build");
  CUdevice handle = 0;
  CUresult status = g_driver.device_get(&handle, device);
  if (status != kSuccess) return error.fail("cuDeviceGet %d: %s", device, describe(status).c_str());
  int major = 0;
  int minor = 0;
  g_driver.device_attribute(&major, kAttributeMajor, handle);
  g_driver.device_attribute(&minor, kAttributeMinor, handle);
  g_driver.device_attribute(&state.multiprocessors, kAttributeMultiprocessors, handle);
  if (major < 7)
    return error.fail("device %d has compute capability %d.%d; allowed is 7.0 or newer", device, major, minor);
  if (state.context == nullptr) {
    status = g_driver.primary_retain(&state.context, handle);
    if (status != kSuccess) return error.fail("cuDevicePrimaryCtxRetain %d: %s", device, describe(status).c_str());
  }
  status = g_driver.context_push(state.context);
  if (status != kSuccess) return error.fail("cuCtxPushCurrent: %s", describe(status).c_str());
  const bool native = major == 7 && minor == 0;
  const int failed = load_kernels(device, native, error);
  CUcontext popped = nullptr;
  g_driver.context_pop(&popped);
  if (failed == 0) state.image_kind = native ? "sm_70 cubin" : "compute_70 PTX";
  return failed;
}

// Which code `device` runs: "sm_70 cubin", "compute_70 PTX", or "" when nothing is loaded there.
SM70_EXPORT const char* sm70_cuda_image_kind(int device) {
  const std::lock_guard<std::mutex> lock(sm70::g_mutex);
  return device >= 0 && device < sm70::kMaxDevices ? sm70::g_devices[device].image_kind : "";
}

// Largest dynamic shared size of each kernel, one `kernel=bytes` a line; for the build record.
SM70_EXPORT const char* sm70_dynamic_shared_list() {
  static const std::string text = [] {
    std::string lines;
    for (const sm70::Kernel* at = sm70::first_kernel(); at != nullptr; at = at->next())
      lines += std::string(at->name()) + "=" + std::to_string(at->max_dynamic_shared()) + "\n";
    return lines;
  }();
  return text.c_str();
}
