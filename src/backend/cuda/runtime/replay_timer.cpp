#include "backend/cuda/runtime/replay_timer.h"

#include <algorithm>

#include "base/error.h"

namespace moesaic::cuda {
namespace {

struct Replay {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  cudaEvent_t start = nullptr, stop = nullptr;
  ~Replay() {
    if (graph != nullptr) cudaGraphDestroy(graph);
    if (executable != nullptr) cudaGraphExecDestroy(executable);
    if (start != nullptr) cudaEventDestroy(start);
    if (stop != nullptr) cudaEventDestroy(stop);
  }

  Status capture(const std::function<Status()>& work, cudaStream_t stream) {
    RETURN_IF_ERROR(check(cudaEventCreate(&start), "event"));
    RETURN_IF_ERROR(check(cudaEventCreate(&stop), "event"));
    RETURN_IF_ERROR(check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture"));
    const Status status = work();
    const Status ended = check(cudaStreamEndCapture(stream, &graph), "capture");
    RETURN_IF_ERROR(status);
    RETURN_IF_ERROR(ended);
    return check(cudaGraphInstantiate(&executable, graph, 0), "graph");
  }
  Result<double> run(cudaStream_t stream) const {
    RETURN_IF_ERROR(check(cudaEventRecord(start, stream), "event"));
    RETURN_IF_ERROR(check(cudaGraphLaunch(executable, stream), "graph"));
    RETURN_IF_ERROR(check(cudaEventRecord(stop, stream), "event"));
    RETURN_IF_ERROR(check(cudaEventSynchronize(stop), "timing"));
    float ms = 0;
    RETURN_IF_ERROR(check(cudaEventElapsedTime(&ms, start, stop), "timing"));
    return ms * 1e-3;
  }
};

}  // namespace

Result<std::vector<double>> time_replays(const std::function<Status()>& work,
                                         const std::function<Status(int)>& refresh, double seconds,
                                         cudaStream_t stream) {
  constexpr int kFewest = 5, kMost = 200;
  Replay replay;
  RETURN_IF_ERROR(replay.capture(work, stream));
  std::vector<double> times;
  double spent = 0;
  for (int i = -1; i < kFewest || (spent < seconds && i < kMost); ++i) {
    RETURN_IF_ERROR(refresh(i));
    ASSIGN_OR_RETURN(const double time, replay.run(stream));
    if (i < 0) continue;
    spent += time;
    times.push_back(time);
  }
  std::sort(times.begin(), times.end());
  return times;
}

}  // namespace moesaic::cuda
