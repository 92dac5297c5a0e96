// Steps that only decode come again and again with the same shape: their kernels are captured once as a CUDA
// graph, and replayed.
#pragma once

#include <cuda_runtime.h>

#include <map>

#include "backend/cuda/runtime/step_input.h"
#include "moesaic/status.h"

namespace moesaic::cuda {

class StepGraphs {
 public:
  StepGraphs() = default;
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;
  ~StepGraphs() { drop(); }

  // Begins a step of this shape: either its graph will be replayed, or the work given to the stream until
  // end() is captured.
  Status begin(const StepShape& shape, cudaStream_t stream);
  // Ends it, and launches it if its ops were recorded without an error.
  Status end(const StepShape& shape, const Status& ops, cudaStream_t stream);
  // The step is not captured: its ops run at once.
  void skip() { replaying_ = capturing_ = false; }
  // Between begin() and end(): the graph has the step's ops already.
  bool replaying() const { return replaying_; }

  // To be called before memory moves that graphs use: waits for the stream and drops all graphs. what: for
  // the error.
  Status retire(const char* what, cudaStream_t stream);
  // No graph may run.
  void drop();

 private:
  Status finish_capture(const StepShape& shape, const Status& ops, cudaStream_t stream);

  bool replaying_ = false, capturing_ = false;
  std::map<StepShape, cudaGraphExec_t> graphs_;
};

}  // namespace moesaic::cuda
