// Steps that only decode come again and again with the same shape: their kernels are captured once as a CUDA
// graph, and replayed. A shape of many rows is captured when it comes for the second time, since a large
// batch changes its size often and a capture costs more than a launch. The graphs that were used last are
// kept. A shape that cannot be captured runs without a graph. Where kernels were launched early
// (runtime/features.h) it is tried once more, and then with plain launches, which stay if that capture
// succeeds.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <set>

#include "backend/backend.h"
#include "backend/cuda/runtime/step_wait.h"
#include "backend/cuda/step/step_input.h"
#include "moesaic/status.h"

namespace moesaic::cuda {

class StepGraphs {
 public:
  explicit StepGraphs(const StepWait& wait) : wait_(wait) {}
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;
  ~StepGraphs() { drop(); }

  // Begins a step of this shape: its graph will be replayed, or the work given to the stream until
  // end_capture() is captured, or neither.
  void begin(const StepShape& shape, cudaStream_t stream);
  // After the step's ops: ends the capture, if there is one. False: the ops were recorded in vain, since one
  // of them failed or the device makes no graph of them; they have to be given to the stream again.
  bool end_capture(const StepShape& shape, const Status& ops, cudaStream_t stream);
  // Replays the step's graph, if it has one.
  Status launch(const StepShape& shape, cudaStream_t stream);
  // The step is not captured: its ops run at once.
  void skip();
  // Between begin() and launch(): the graph has the step's ops already.
  bool replaying() const { return replaying_; }
  // Between begin() and end_capture(): the ops are recorded, and do not run.
  bool capturing() const { return capturing_; }

  StepCaptures captures() const { return captures_; }

  // To be called before memory moves that graphs use: waits for the stream and drops all graphs. what: for
  // the error.
  Status retire(const char* what, cudaStream_t stream);
  // No graph may run.
  void drop();

 private:
  cudaGraphExec_t instantiate(cudaGraph_t graph, cudaStream_t stream);
  void refuse(const StepShape& shape);
  void refuse_capture(const StepShape& shape);
  static void keep_plain_launches();
  void drop_oldest();

  struct Graph {
    cudaGraphExec_t executable = nullptr;
    uint64_t used = 0;  // the launch that it was used for last
  };
  const StepWait& wait_;
  bool replaying_ = false, capturing_ = false;
  bool plainly_ = false;  // this capture's launches are plain, so that it shows whether early ones failed it
  std::map<StepShape, Graph> graphs_;
  std::set<StepShape> seen_;                 // shapes of many rows that have come
  std::set<StepShape> refused_;              // shapes that could not be captured
  std::map<StepShape, int> early_failures_;  // captures of a shape that failed with early launches
  uint64_t launches_ = 0;
  StepCaptures captures_;
};

}  // namespace moesaic::cuda
