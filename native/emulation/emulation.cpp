// Runs kernels with one fiber a thread, in place of cuda/driver_launch.cpp. Same C ABI; "device 0" is host memory.
#include "emulation/emulation.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "cuda/driver.h"
#include "emulation/cuda_emulation.h"

extern "C" {
// Bounds of the section that holds every __shared__ variable; the linker defines them.
extern unsigned char __start_sm70_shared[] __attribute__((weak, visibility("hidden")));
extern unsigned char __stop_sm70_shared[] __attribute__((weak, visibility("hidden")));

void sm70emu_switch(void** save, void* to);
}

// Saves the callee-saved registers on the running stack and continues on another.
asm(R"(
.text
.globl sm70emu_switch
.hidden sm70emu_switch
.type sm70emu_switch, @function
sm70emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size sm70emu_switch, .-sm70emu_switch
)");

namespace sm70emu {

Thread* g_thread = nullptr;
uint3 g_block, g_block_dim, g_grid_dim;
unsigned char* g_dynamic_shared = nullptr;

namespace {

constexpr size_t kStackBytes = 64 * 1024;
constexpr int kMaxThreads = 1024;
constexpr int kWarp = 32;

enum class State { kReady, kAtBlock, kAtWarp, kDone };

struct Fiber : Thread {
  void* stack_pointer = nullptr;
  State state = State::kReady;
  const char* what = "";
  int linear = 0;
  int parity = 0;        // of the warp's slots
  int block_parity = 0;  // of the block's votes
};

// Two sets of slots: a lane may be one exchange ahead of a lane that still reads the last one.
struct Warp {
  unsigned char slots[2][kWarp * kSlotBytes];
};

std::map<std::string, Entry>& entries() {
  static std::map<std::string, Entry> table;
  return table;
}

std::mutex g_mutex;
int g_order = 0;
unsigned char* g_stacks = nullptr;
Fiber g_fibers[kMaxThreads];
bool g_votes[2][kMaxThreads];
Warp g_warps[kMaxThreads / kWarp];
void* g_scheduler = nullptr;
const Entry* g_entry = nullptr;
void** g_arguments = nullptr;
int g_threads = 0;
alignas(128) unsigned char g_dynamic[sm70::kMaxDynamicShared];

[[noreturn]] void die(const char* kernel, const char* message) {
  std::fprintf(stderr, "emulated kernel %s: %s\n", kernel, message);
  std::abort();
}
const char* g_kernel_name = "";

Fiber& current() { return *static_cast<Fiber*>(g_thread); }

void yield(State state, const char* what) {
  Fiber& fiber = current();
  fiber.state = state;
  fiber.what = what;
  sm70emu_switch(&fiber.stack_pointer, g_scheduler);
}

void fiber_main() {
  g_entry->call(g_arguments);
  yield(State::kDone, "");
  die(g_kernel_name, "a finished thread ran again");
}

void prepare(Fiber& fiber, int linear) {
  fiber.linear = linear;
  fiber.state = State::kReady;
  fiber.parity = 0;
  fiber.block_parity = 0;
  fiber.index = {linear % g_block_dim.x, linear / g_block_dim.x % g_block_dim.y,
                 linear / (g_block_dim.x * g_block_dim.y)};
  // A fresh stack looks as if fiber_main had been interrupted before its first instruction: six registers and the
  // return address, placed so that the stack is aligned as after a call.
  void** top = reinterpret_cast<void**>(g_stacks + (static_cast<size_t>(linear) + 1) * kStackBytes) - 2;
  top[0] = reinterpret_cast<void*>(&fiber_main);
  for (int i = 1; i <= 6; ++i) top[-i] = nullptr;
  fiber.stack_pointer = top - 6;
}

bool release_warp(int warp) {
  const int first = warp * kWarp;
  const int last = std::min(first + kWarp, g_threads);
  const char* what = nullptr;
  for (int i = first; i < last; ++i) {
    if (g_fibers[i].state != State::kAtWarp) return false;
    if (what != nullptr && std::strcmp(what, g_fibers[i].what) != 0)
      die(g_kernel_name, "lanes of one warp met in different warp-wide operations");
    what = g_fibers[i].what;
  }
  for (int i = first; i < last; ++i) g_fibers[i].state = State::kReady;
  return true;
}

bool release_block() {
  for (int i = 0; i < g_threads; ++i)
    if (g_fibers[i].state != State::kAtBlock) return false;
  for (int i = 0; i < g_threads; ++i) g_fibers[i].state = State::kReady;
  return true;
}

bool finished() {
  for (int i = 0; i < g_threads; ++i)
    if (g_fibers[i].state != State::kDone) return false;
  return true;
}

void run_block(std::mt19937& random) {
  if (__start_sm70_shared != nullptr)
    std::memset(__start_sm70_shared, 0xff, static_cast<size_t>(__stop_sm70_shared - __start_sm70_shared));
  std::memset(g_dynamic, 0xff, sizeof(g_dynamic));
  std::vector<int> order(static_cast<size_t>(g_threads));
  for (int i = 0; i < g_threads; ++i) {
    prepare(g_fibers[i], i);
    order[static_cast<size_t>(i)] = g_order == 1 ? g_threads - 1 - i : i;
  }
  const int warps = (g_threads + kWarp - 1) / kWarp;
  while (!finished()) {
    if (g_order > 1) std::shuffle(order.begin(), order.end(), random);
    bool progress = false;
    for (const int i : order) {
      if (g_fibers[i].state != State::kReady) continue;
      progress = true;
      g_thread = &g_fibers[i];
      sm70emu_switch(&g_scheduler, g_fibers[i].stack_pointer);
    }
    for (int warp = 0; warp < warps; ++warp) progress |= release_warp(warp);
    progress |= release_block();
    if (!progress) die(g_kernel_name, "threads wait for each other at different barriers, or some have left");
  }
}

}  // namespace

void block_barrier() { yield(State::kAtBlock, "__syncthreads"); }

bool block_any(bool predicate) {
  Fiber& fiber = current();
  fiber.block_parity ^= 1;
  bool* votes = g_votes[fiber.block_parity];
  votes[fiber.linear] = predicate;
  yield(State::kAtBlock, "__syncthreads_or");
  return std::any_of(votes, votes + g_threads, [](bool vote) { return vote; });
}

int lane_id() { return current().linear % kWarp; }

int warp_lanes() { return std::min(kWarp, g_threads - current().linear / kWarp * kWarp); }

const unsigned char* exchange(const char* what, const void* value, int size) {
  Fiber& fiber = current();
  fiber.parity ^= 1;
  unsigned char* slots = g_warps[fiber.linear / kWarp].slots[fiber.parity];
  if (size > 0) std::memcpy(slots + lane_id() * kSlotBytes, value, static_cast<size_t>(size));
  yield(State::kAtWarp, what);
  return slots;
}

Entry::Entry(const char* name, void (*call)(void**)) : call(call) { entries().insert({name, *this}); }

}  // namespace sm70emu

namespace sm70 {

namespace {
Kernel* g_kernels = nullptr;
}

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

// Few, so that kernels that share work among blocks have more work than blocks.
int multiprocessors(int) { return 2; }

int Kernel::resident_blocks(int, unsigned, unsigned) const { return 1; }

int Kernel::launch_raw(Dim3 grid, Dim3 block, unsigned shared, Where where, Error& error, void** args) const {
  using namespace sm70emu;
  if (where.device != 0) return error.fail("device %d: the emulation has device 0 only", where.device);
  if (shared > max_dynamic_shared_)
    return error.fail("kernel %s asked for %u bytes of dynamic shared memory, it declares %u", name_, shared,
                      max_dynamic_shared_);
  const unsigned threads = block.x * block.y * block.z;
  if (threads == 0 || threads > kMaxThreads) return error.fail("kernel %s: %u threads a block", name_, threads);
  const auto entry = entries().find(name_);
  if (entry == entries().end()) return error.fail("kernel %s is not in the emulation", name_);
  const std::lock_guard<std::mutex> lock(g_mutex);
  if (g_stacks == nullptr) {
    void* memory = mmap(nullptr, kStackBytes * kMaxThreads, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return error.fail("no memory for the emulated threads");
    g_stacks = static_cast<unsigned char*>(memory);
  }
  g_entry = &entry->second;
  g_kernel_name = name_;
  g_arguments = args;
  g_threads = static_cast<int>(threads);
  g_block_dim = {block.x, block.y, block.z};
  g_grid_dim = {grid.x, grid.y, grid.z};
  g_dynamic_shared = g_dynamic;
  std::mt19937 random(static_cast<unsigned>(g_order));
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        g_block = {x, y, z};
        run_block(random);
      }
  return 0;
}

}  // namespace sm70

// In which order threads run between barriers: 0 ascending, 1 descending, above 1 shuffled with that seed.
SM70_EXPORT void sm70_emulation_order(int order) { sm70emu::g_order = order; }

SM70_EXPORT int sm70_cuda_device_count(int* count, char*, int64_t) {
  *count = 1;
  return 0;
}
SM70_EXPORT int sm70_cuda_load(int device, char* err, int64_t err_len) {
  sm70::Error error{err, err_len};
  return device == 0 ? 0 : error.fail("device %d: the emulation has device 0 only", device);
}
SM70_EXPORT const char* sm70_cuda_image_kind(int device) { return device == 0 ? "emulation" : ""; }
