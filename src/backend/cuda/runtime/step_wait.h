// Waits for steps. A wait ends even if the device never answers.
#pragma once

#include <cuda_runtime.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

#include "moesaic/status.h"

namespace moesaic::cuda {

// cudaEventSynchronize() and cudaStreamSynchronize() wait as long as it takes, and a kernel or a driver that
// hangs takes for ever. These ask again and again instead, as those do, but not longer than the limit. Then
// they give an error and the device counts as lost: whatever waits for it would never return, so nothing that
// it holds is freed any more (the end of the process does that), and no further step begins. The time during
// which the process is stopped hardly counts (Patience).
//
// A thread asks without a pause for the first second, in which any step of a batch that was chosen well ends,
// and a hundred times a second from then on.
class StepWait {
 public:
  // limit_seconds: 0: none. progress: where the host computes experts, a number that changes while the step
  // moves on, and 0 otherwise. The limit counts from its last change. May be empty.
  explicit StepWait(double limit_seconds, std::function<uint32_t()> progress = {})
      : limit_(limit_seconds), progress_(std::move(progress)) {}

  // `what` is for the error: "step".
  Status operator()(cudaEvent_t event, const char* what) const;
  Status operator()(cudaStream_t stream, const char* what) const;
  // query: cudaErrorNotReady as long as there is something to wait for.
  Status until(const std::function<cudaError_t()>& query, const char* what) const;

 private:
  std::chrono::duration<double> limit_;
  std::function<uint32_t()> progress_;
};

// True once any wait of this process has reached its limit.
bool device_is_lost();
Status lost_device();  // the error of it

}  // namespace moesaic::cuda
