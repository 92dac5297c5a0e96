// The time of each op of one step, as a captured graph runs them: events stand between the ops as nodes of
// the graph, so that launching costs what it costs in a replayed step. Ops do not overlap while they are
// timed.
#pragma once

#include <vector>

#include "backend/cuda/runtime/device.h"
#include "backend/profiling.h"

namespace moesaic::cuda {

class OpTimer {
 public:
  OpTimer() = default;
  ~OpTimer();
  OpTimer(const OpTimer&) = delete;
  OpTimer& operator=(const OpTimer&) = delete;

  // The stream is captured from begin() to finish(); what is put on it after mark(op) counts for op.
  Status begin(cudaStream_t stream);
  Status mark(int op, cudaStream_t stream);
  // Runs what was captured and adds the seconds of each op to ops[op].
  Status finish(cudaStream_t stream, std::span<OpProfile> ops);

 private:
  Status record(cudaStream_t stream);
  std::vector<cudaEvent_t> events_;  // used again by the next step
  std::vector<int> marks_;           // [n] the op that begins at event n
};

}  // namespace moesaic::cuda
