// Steps that only decode come again and again with the same shape: their kernels are captured once as a CUDA
// graph, and replayed. A shape of many rows is captured when it comes for the second time, since a large
// batch changes its size often and a capture costs more than a launch. The graphs that were used last are
// kept.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <set>

#include "backend/cuda/runtime/step_input.h"
#include "backend/cuda/runtime/step_wait.h"
#include "moesaic/status.h"

namespace moesaic::cuda {

class StepGraphs {
 public:
  explicit StepGraphs(const StepWait& wait) : wait_(wait) {}
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;
  ~StepGraphs() { drop(); }

  // Begins a step of this shape: its graph will be replayed, or the work given to the stream until end() is
  // captured, or neither.
  Status begin(const StepShape& shape, cudaStream_t stream);
  // Ends it, and launches it if its ops were recorded without an error.
  Status end(const StepShape& shape, const Status& ops, cudaStream_t stream);
  // The step is not captured: its ops run at once.
  void skip() { replaying_ = capturing_ = false; }
  // Between begin() and end(): the graph has the step's ops already.
  bool replaying() const { return replaying_; }

  int64_t captures() const { return captures_; }  // so far

  // To be called before memory moves that graphs use: waits for the stream and drops all graphs. what: for
  // the error.
  Status retire(const char* what, cudaStream_t stream);
  // No graph may run.
  void drop();

 private:
  Status finish_capture(const StepShape& shape, const Status& ops, cudaStream_t stream);

  Result<cudaGraphExec_t> instantiate(cudaGraph_t graph, cudaStream_t stream);
  void drop_oldest();
  bool is_new(const StepShape& shape);

  struct Graph {
    cudaGraphExec_t executable = nullptr;
    uint64_t used = 0;  // the launch that it was used for last
  };
  const StepWait& wait_;
  bool replaying_ = false, capturing_ = false;
  std::map<StepShape, Graph> graphs_;
  std::set<StepShape> seen_;  // shapes of many rows that have come
  uint64_t launches_ = 0;
  int64_t captures_ = 0;
};

}  // namespace moesaic::cuda
