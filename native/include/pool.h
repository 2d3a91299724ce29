// The library's threads: a job is a number of chunks that may run in any order on any thread.
//
// A chunk's result may depend on its index only, never on the thread or on how many there are: that is what keeps
// results the same for every thread count. One job runs at a time; a second caller waits.
#ifndef SM70_POOL_H_
#define SM70_POOL_H_

#include <cstdint>

namespace sm70 {

// Runs body(context, chunk) for chunk = 0 .. chunks - 1 and returns when all are done. `chunks` < 2^32.
void run_chunks(std::int64_t chunks, void (*body)(void* context, std::int64_t chunk), void* context);

// The same for a callable.
template <class Body>
void parallel_for(std::int64_t chunks, const Body& body) {
  run_chunks(
      chunks, [](void* context, std::int64_t chunk) { (*static_cast<const Body*>(context))(chunk); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

// Threads of the next job, the caller's included.
int thread_count();

}  // namespace sm70

#endif  // SM70_POOL_H_
