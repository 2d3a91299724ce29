#include "pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "capability.h"

namespace sm70 {
namespace {

// Pauses (20 to 50 ns each) that a thread looks for work before it sleeps: longer than the gap between two ops of a
// decode step, short enough not to burn a shared machine.
constexpr int kSpins = 1000;
constexpr int kMaxThreads = 256;
constexpr std::uint64_t kClosed = 0xFFFFFFFFu;  // low half of a ticket that no chunk can be taken from

void relax() { __builtin_ia32_pause(); }

// A job is published by moving `ticket` to a new epoch (high half) with next chunk 0 (low half). A chunk is taken by a
// compare-and-swap on the whole word, and the ticket is closed before the job's fields change: a thread that read
// another job's fields than its ticket says cannot take a chunk. The caller waits for taken chunks only, never for a
// thread to wake up.
class Pool {
 public:
  Pool() {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    const int cpus = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
    wanted_ = cpus < 1 ? 1 : cpus > kMaxThreads ? kMaxThreads : cpus;
  }

  void run(std::int64_t chunks, void (*body)(void*, std::int64_t), void* context) {
    if (chunks <= 0) return;
    if (chunks == 1 || wanted_.load(std::memory_order_relaxed) == 1) {
      for (std::int64_t chunk = 0; chunk < chunks; ++chunk) body(context, chunk);
      return;
    }
    const std::lock_guard<std::mutex> one_job(caller_);
    start_missing_threads();
    const std::uint64_t epoch = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
    ticket_.store((epoch - 1) << 32 | kClosed, std::memory_order_seq_cst);
    chunks_.store(chunks, std::memory_order_release);
    body_.store(body, std::memory_order_release);
    context_.store(context, std::memory_order_release);
    done_.store(0, std::memory_order_relaxed);
    ticket_.store(epoch << 32, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) wake();
    take_chunks(epoch);
    for (int spin = 0; done_.load(std::memory_order_acquire) != chunks; ++spin) {
      if (spin < kSpins)
        relax();
      else
        sched_yield();  // the thread that holds the last chunk may need this CPU
    }
  }

  void set_threads(int count) {
    const std::lock_guard<std::mutex> one_job(caller_);
    wanted_ = count;
    wake();
  }

  int threads() const { return wanted_; }

 private:
  void start_missing_threads() {
    for (; started_ < wanted_ - 1; ++started_) std::thread(&Pool::work, this, started_).detach();
  }

  void work(int index) {
    std::uint64_t seen = 0;
    for (;;) {
      seen = wait_for_job(seen, index);
      take_chunks(seen);
    }
  }

  // The epoch of a job that is not `seen`. Threads beyond the wanted count sleep through every job.
  std::uint64_t wait_for_job(std::uint64_t seen, int index) {
    for (int spin = 0;; ++spin) {
      const std::uint64_t ticket = ticket_.load(std::memory_order_acquire);
      const bool wanted = index + 1 < wanted_.load(std::memory_order_relaxed);
      if (wanted && ticket >> 32 != seen) return ticket >> 32;
      if (wanted && spin < kSpins) {
        relax();
        continue;
      }
      spin = 0;
      const std::uint32_t call = bell_.load(std::memory_order_seq_cst);
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      if (!wanted || ticket_.load(std::memory_order_seq_cst) >> 32 == seen) sleep(call);
      sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    }
  }

  void take_chunks(std::uint64_t epoch) {
    const std::int64_t chunks = chunks_.load(std::memory_order_acquire);
    void (*const body)(void*, std::int64_t) = body_.load(std::memory_order_acquire);
    void* const context = context_.load(std::memory_order_acquire);
    std::uint64_t at = ticket_.load(std::memory_order_acquire);
    while (at >> 32 == epoch) {
      const std::int64_t chunk = static_cast<std::int64_t>(at & 0xFFFFFFFFu);
      if (chunk >= chunks) return;
      if (!ticket_.compare_exchange_weak(at, at + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
      body(context, chunk);
      done_.fetch_add(1, std::memory_order_release);
      at = ticket_.load(std::memory_order_acquire);
    }
  }

  void sleep(std::uint32_t call) {
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&bell_), FUTEX_WAIT_PRIVATE, call, nullptr, nullptr, 0);
  }

  void wake() {
    bell_.fetch_add(1, std::memory_order_seq_cst);
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&bell_), FUTEX_WAKE_PRIVATE, kMaxThreads, nullptr, nullptr, 0);
  }

  std::mutex caller_;
  int started_ = 0;  // threads besides the caller's; they live as long as the process
  std::atomic<int> wanted_;
  std::atomic<std::int64_t> chunks_{0};
  std::atomic<void (*)(void*, std::int64_t)> body_{nullptr};
  std::atomic<void*> context_{nullptr};
  alignas(64) std::atomic<std::uint64_t> ticket_{0};
  alignas(64) std::atomic<std::int64_t> done_{0};
  alignas(64) std::atomic<std::uint32_t> bell_{0};
  std::atomic<int> sleepers_{0};
};

// Never destroyed: its threads may outlive static destruction. A forked child has none of them and starts anew.
Pool* g_pool = nullptr;

Pool& pool() {
  static const bool ready = [] {
    g_pool = new Pool;
    pthread_atfork(nullptr, nullptr, [] {
      const int threads = g_pool->threads();
      g_pool = new Pool;
      g_pool->set_threads(threads);
    });
    return true;
  }();
  (void)ready;
  return *g_pool;
}

Capability runtime("runtime", 1);

}  // namespace

void run_chunks(std::int64_t chunks, void (*body)(void*, std::int64_t), void* context) {
  pool().run(chunks, body, context);
}

int thread_count() { return pool().threads(); }

}  // namespace sm70

// Threads of the ops from now on, the caller's included. 1 <= count <= 256 (Python checks).
SM70_EXPORT void sm70_set_threads(int count) { sm70::pool().set_threads(count); }
SM70_EXPORT int sm70_threads() { return sm70::thread_count(); }
