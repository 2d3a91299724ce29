// Memory that an op needs while it runs, kept by the calling thread from one op to the next.
#ifndef SM70_CPU_SCRATCH_H_
#define SM70_CPU_SCRATCH_H_

#include <cstddef>
#include <cstdlib>

namespace sm70 {

class Scratch {
 public:
  ~Scratch() { std::free(memory_); }

  // At least `bytes`, 64-byte aligned; null when the system has no more. Content is lost at the next call.
  char* take(std::size_t bytes) {
    if (bytes > size_) {
      std::free(memory_);
      size_ = (bytes + bytes / 2 + 4095) / 4096 * 4096;
      memory_ = static_cast<char*>(std::aligned_alloc(64, size_));
      if (memory_ == nullptr) size_ = 0;
    }
    return memory_;
  }

 private:
  char* memory_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace sm70

#endif  // SM70_CPU_SCRATCH_H_
