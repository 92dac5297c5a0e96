#include "backend/cuda/step/step_graphs.h"

#include <algorithm>

#include "backend/cuda/runtime/device.h"
#include "backend/cuda/runtime/features.h"
#include "base/error.h"
#include "base/log.h"

namespace moesaic::cuda {

namespace {

constexpr int kManyRows = 64;
constexpr size_t kMostShapes = 4096;  // shapes that are remembered
// A capture that fails once may have failed for what is over: a lack of memory as a kernel was loaded,
// another thread's doing.
constexpr int kEarlyCaptures = 2;

// Adds the shape; false if it was there already.
bool remember(std::set<StepShape>& shapes, const StepShape& shape) {
  if (shapes.size() >= kMostShapes) shapes.clear();
  return shapes.insert(shape).second;
}

}  // namespace

void StepGraphs::begin(const StepShape& shape, cudaStream_t stream) {
  skip();
  replaying_ = graphs_.contains(shape);
  if (replaying_ || refused_.contains(shape)) return;
  if (shape.rows > kManyRows && remember(seen_, shape)) return;
  const auto failed = early_failures_.find(shape);
  plainly_ = failed != early_failures_.end() && failed->second >= kEarlyCaptures && early_launches();
  capturing_ = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess;
  if (!capturing_) return refuse(shape);
  set_plain_launches(plainly_);
}

// The step before may have been ended by an exception.
void StepGraphs::skip() {
  replaying_ = capturing_ = false;
  set_plain_launches(false);
}

void StepGraphs::refuse_capture(const StepShape& shape) {
  if (plainly_ || !early_launches()) return refuse(shape);
  cudaGetLastError();
  ++captures_.failed;
  if (early_failures_.size() >= kMostShapes) early_failures_.clear();
  ++early_failures_[shape];
}

// A driver may refuse to capture early launches.
void StepGraphs::keep_plain_launches() {
  set_early_launches(false);
  debug(
      "cuda: a step could not be captured: from now on kernels start after their predecessors have ended, as "
      "with MOESAIC_PDL=0");
}

void StepGraphs::refuse(const StepShape& shape) {
  cudaGetLastError();
  remember(refused_, shape);
  ++captures_.failed;
}

bool StepGraphs::end_capture(const StepShape& shape, const Status& ops, cudaStream_t stream) {
  if (!capturing_) return true;
  capturing_ = false;
  set_plain_launches(false);
  cudaGraph_t graph = nullptr;
  const bool captured = cudaStreamEndCapture(stream, &graph) == cudaSuccess && ops.ok();
  if (!captured) {
    if (graph != nullptr) cudaGraphDestroy(graph);
    refuse_capture(shape);
    return false;
  }
  cudaGraphExec_t const executable = instantiate(graph, stream);
  cudaGraphDestroy(graph);
  if (executable == nullptr) {
    refuse(shape);
    return false;
  }
  if (plainly_) keep_plain_launches();
  early_failures_.erase(shape);
  graphs_[shape] = {.executable = executable};
  ++captures_.made;
  return replaying_ = true;
}

Status StepGraphs::launch(const StepShape& shape, cudaStream_t stream) {
  if (!replaying_) return {};
  replaying_ = false;
  Graph& graph = graphs_.at(shape);
  graph.used = ++launches_;
  return check(cudaGraphLaunch(graph.executable, stream), "graph");
}

// The other graphs go where the device has no memory for one more. Null: it makes none all the same.
cudaGraphExec_t StepGraphs::instantiate(cudaGraph_t graph, cudaStream_t stream) {
  constexpr size_t kMostGraphs = 512;
  if (graphs_.size() >= kMostGraphs) drop_oldest();
  cudaGraphExec_t executable = nullptr;
  if (cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess) return executable;
  cudaGetLastError();
  const bool retried =
      retire("graph", stream).ok() && cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess;
  return retried ? executable : nullptr;
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
  graphs_.clear(), refused_.clear(), early_failures_.clear();
}

}  // namespace moesaic::cuda
