// A part of a GPU's multiprocessors (a green context). Ranks that share a GPU have one each: a kernel that
// waits for another rank cannot keep that rank's kernels from running.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "moesaic/status.h"

namespace moesaic::cuda {

class GpuPart {
 public:
  GpuPart() = default;
  GpuPart(const GpuPart&) = delete;
  GpuPart& operator=(const GpuPart&) = delete;
  // Destroy its streams first.
  ~GpuPart();

  // The index-th of `count` equal parts of the current device; the whole device where there is one. The parts
  // of a device do not overlap. An error where the device or its driver has no such parts.
  Status open(int index, int count);
  // A stream whose kernels run in this part alone, also those of graphs that are captured from it. It does
  // not wait for the default stream.
  Result<cudaStream_t> make_stream() const;
  int multiprocessors() const { return multiprocessors_; }

 private:
  CUgreenCtx context_ = nullptr;  // null: the whole device
  int multiprocessors_ = 0;
};

}  // namespace moesaic::cuda
