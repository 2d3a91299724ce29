// How a C function of the library reports an error: a non-zero return, and the words kept for the calling thread.
#ifndef SM70_STATUS_H_
#define SM70_STATUS_H_

namespace sm70 {

enum Status : int {
  kOk = 0,
  kBadValue = 1,  // the content of an argument is out of range; Python raises ValueError
  kFailed = 2,    // the op could not run; Python raises RuntimeError
};

// Keeps the message for sm70_last_error() of this thread and returns `status`.
__attribute__((format(printf, 2, 3))) int fail(Status status, const char* format, ...);

}  // namespace sm70

#endif  // SM70_STATUS_H_
