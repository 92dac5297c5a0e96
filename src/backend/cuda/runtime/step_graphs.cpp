#include "backend/cuda/runtime/step_graphs.h"

#include "backend/cuda/runtime/device.h"
#include "base/error.h"

namespace moesaic::cuda {

Status StepGraphs::begin(const StepShape& shape, cudaStream_t stream) {
  skip();
  if (graphs_.contains(shape)) {
    replaying_ = true;
    return {};
  }
  RETURN_IF_ERROR(check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture"));
  capturing_ = true;
  return {};
}

Status StepGraphs::end(const StepShape& shape, const Status& ops, cudaStream_t stream) {
  if (capturing_) RETURN_IF_ERROR(finish_capture(shape, ops, stream));
  if (!replaying_) return {};
  replaying_ = false;
  return check(cudaGraphLaunch(graphs_.at(shape), stream), "graph");
}

Status StepGraphs::finish_capture(const StepShape& shape, const Status& ops, cudaStream_t stream) {
  constexpr size_t kMostGraphs = 256;
  cudaGraph_t graph = nullptr;
  const Status captured = check(cudaStreamEndCapture(stream, &graph), "capture");
  capturing_ = false;
  if (!ops.ok() || !captured.ok()) {
    if (graph != nullptr) cudaGraphDestroy(graph);
    return ops.ok() ? captured : ops;
  }
  if (graphs_.size() >= kMostGraphs) RETURN_IF_ERROR(retire("step", stream));
  cudaGraphExec_t executable = nullptr;
  const Status made = check(cudaGraphInstantiate(&executable, graph, 0), "graph");
  cudaGraphDestroy(graph);
  RETURN_IF_ERROR(made);
  graphs_[shape] = executable;
  replaying_ = true;
  return {};
}

Status StepGraphs::retire(const char* what, cudaStream_t stream) {
  RETURN_IF_ERROR(check(cudaStreamSynchronize(stream), what));
  drop();
  return {};
}

void StepGraphs::drop() {
  for (auto& [shape, graph] : graphs_) cudaGraphExecDestroy(graph);
  graphs_.clear();
}

}  // namespace moesaic::cuda
