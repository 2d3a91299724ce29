// What a kernel records when it meets a value that cannot be: it cannot raise, so it reads or writes nothing there and
// leaves {kind, where, index, value} of the first such value for native.ops_cuda.raise_on_fault to name.
#ifndef SM70_CUDA_FAULTS_H_
#define SM70_CUDA_FAULTS_H_

enum Fault {
  kFaultNone = 0,
  kFaultBlock = 1,     // where: sequence, index: entry of its block table
  kFaultLength = 2,    // where: sequence
  kFaultSlot = 3,      // where: token
  kFaultPosition = 4,  // where: token
  kFaultId = 5,        // where: row, index: column
  kFaultState = 6,     // where: sequence, index: its token, or -1 for the initial slot
  kFaultKept = 7,      // where: sequence, index: its token
};

#endif  // SM70_CUDA_FAULTS_H_
