// Which kernels an op launches: what is really launched, seen by launch() (device.h), for `plan` and for one
// line a call site under --log debug.
#pragma once

#include <cuda_runtime.h>

#include <set>
#include <string>
#include <vector>

namespace moesaic::cuda {

class LaunchLog {
 public:
  // While a scope lives, launches of this thread count for op.
  class Scope {
   public:
    Scope(LaunchLog& log, const char* op);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
  };

  // The kernels of op (the pointer that scopes were given) since clear(), in order, each once:
  // "gemm_small_m_kernel<Mxfp4Source, 1, SwiGlu> 180x4 x 256".
  std::vector<std::string> kernels(const char* op) const;
  void clear() { uses_.clear(); }

 private:
  friend void note_launch(const void* kernel, dim3 grid, dim3 block, size_t shared);
  void add(const void* kernel, dim3 grid, dim3 block, size_t shared);

  struct Use {
    const char* op;
    const void* kernel;
    dim3 grid, block;  // the first launch's
  };
  const char* op_ = "";
  std::vector<Use> uses_;
  std::set<std::pair<const void*, const char*>> logged_;  // kernel and op of each line that was logged
};

// The innermost scope's log, if there is one.
void note_launch(const void* kernel, dim3 grid, dim3 block, size_t shared);

// A kernel's name as a person writes it: gemm_small_m_kernel<Mxfp4Source, 1, SwiGlu>.
std::string readable_kernel(const std::string& mangled);

}  // namespace moesaic::cuda
