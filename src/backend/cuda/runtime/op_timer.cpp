#include "backend/cuda/runtime/op_timer.h"

#include "base/error.h"

namespace moesaic::cuda {

OpTimer::~OpTimer() {
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
}

Status OpTimer::begin(cudaStream_t stream, bool captures) {
  marks_.clear(), spans_.clear();
  captures_ = captures;
  return !captures ? Status()
                   : check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "timing");
}

Status OpTimer::mark(const Mark& mark, cudaStream_t stream) {
  RETURN_IF_ERROR(record(stream));
  marks_.push_back(mark);
  return {};
}

// The event that follows the marks so far.
Status OpTimer::record(cudaStream_t stream) {
  if (events_.size() == marks_.size()) {
    cudaEvent_t event = nullptr;
    RETURN_IF_ERROR(check(cudaEventCreate(&event), "timing"));
    events_.push_back(event);
  }
  const unsigned flags = captures_ ? cudaEventRecordExternal : cudaEventRecordDefault;
  return check(cudaEventRecordWithFlags(events_[marks_.size()], stream, flags), "timing");
}

Status OpTimer::run_captured(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  Status status = check(cudaStreamEndCapture(stream, &graph), "timing");
  if (status.ok()) status = check(cudaGraphInstantiate(&executable, graph, 0), "timing");
  if (status.ok()) status = check(cudaGraphLaunch(executable, stream), "timing");
  if (status.ok()) status = check(cudaStreamSynchronize(stream), "timing");
  if (executable != nullptr) cudaGraphExecDestroy(executable);
  if (graph != nullptr) cudaGraphDestroy(graph);
  return status;
}

Status OpTimer::finish(cudaStream_t stream, std::span<OpProfile> ops) {
  const Status last = record(stream);
  Status status = captures_ ? run_captured(stream) : check(cudaStreamSynchronize(stream), "timing");
  if (status.ok()) status = last;
  double begin = 0;
  for (size_t i = 0; i < marks_.size() && status.ok(); ++i) {
    float ms = 0;
    status = check(cudaEventElapsedTime(&ms, events_[i], events_[i + 1]), "timing");
    const Mark& mark = marks_[i];
    const double seconds = ms * 1e-3;
    ops[mark.op].seconds += seconds;
    spans_.push_back({.op = ops[mark.op].op,
                      .layer = mark.layer,
                      .begin = begin,
                      .seconds = seconds,
                      .bytes = mark.bytes,
                      .flops = mark.flops});
    begin += seconds;
  }
  return status;
}

}  // namespace moesaic::cuda
