#include "backend/cuda/runtime/step_graphs.h"

#include <algorithm>

#include "backend/cuda/runtime/device.h"
#include "base/error.h"

namespace moesaic::cuda {

Status StepGraphs::begin(const StepShape& shape, cudaStream_t stream) {
  skip();
  if (graphs_.contains(shape)) {
    replaying_ = true;
    return {};
  }
  if (is_new(shape)) return {};
  RETURN_IF_ERROR(check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture"));
  capturing_ = true;
  return {};
}

bool StepGraphs::is_new(const StepShape& shape) {
  constexpr int kManyRows = 64;
  constexpr size_t kMostSeen = 4096;
  if (shape.rows <= kManyRows) return false;
  if (seen_.size() >= kMostSeen) seen_.clear();
  return seen_.insert(shape).second;
}

Status StepGraphs::end(const StepShape& shape, const Status& ops, cudaStream_t stream) {
  if (capturing_) RETURN_IF_ERROR(finish_capture(shape, ops, stream));
  if (!replaying_) return {};
  replaying_ = false;
  Graph& graph = graphs_.at(shape);
  graph.used = ++launches_;
  return check(cudaGraphLaunch(graph.executable, stream), "graph");
}

Status StepGraphs::finish_capture(const StepShape& shape, const Status& ops, cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  const Status captured = check(cudaStreamEndCapture(stream, &graph), "capture");
  capturing_ = false;
  if (!ops.ok() || !captured.ok()) {
    if (graph != nullptr) cudaGraphDestroy(graph);
    return ops.ok() ? captured : ops;
  }
  const Result<cudaGraphExec_t> executable = instantiate(graph, stream);
  cudaGraphDestroy(graph);
  RETURN_IF_ERROR(executable.status());
  graphs_[shape] = {.executable = executable.value()};
  ++captures_;
  replaying_ = true;
  return {};
}

// The other graphs go where the device has no memory for one more.
Result<cudaGraphExec_t> StepGraphs::instantiate(cudaGraph_t graph, cudaStream_t stream) {
  constexpr size_t kMostGraphs = 512;
  if (graphs_.size() >= kMostGraphs) drop_oldest();
  cudaGraphExec_t executable = nullptr;
  if (cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess) return executable;
  cudaGetLastError();
  RETURN_IF_ERROR(retire("graph", stream));
  RETURN_IF_ERROR(check(cudaGraphInstantiate(&executable, graph, 0), "graph"));
  return executable;
}

// The oldest of so many graphs does not run: at most two steps are in flight.
void StepGraphs::drop_oldest() {
  const auto oldest =
      std::ranges::min_element(graphs_, {}, [](const auto& entry) { return entry.second.used; });
  cudaGraphExecDestroy(oldest->second.executable);
  graphs_.erase(oldest);
}

Status StepGraphs::retire(const char* what, cudaStream_t stream) {
  RETURN_IF_ERROR(wait_(stream, what));
  drop();
  return {};
}

void StepGraphs::drop() {
  for (auto& [shape, graph] : graphs_) {
    if (!device_is_lost()) cudaGraphExecDestroy(graph.executable);
  }
  graphs_.clear();
}

}  // namespace moesaic::cuda
