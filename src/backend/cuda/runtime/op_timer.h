// The time of each op of one step. Events stand between the ops, so that ops do not overlap while they are
// timed. A step that may be captured is timed as a graph, in which launching costs what it costs in a
// replayed step.
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

  // Work that is put on the stream from mark() to the next mark, or to finish(), counts for ops[op].
  // captures: the stream is captured from begin() to finish(), which runs it; else it runs meanwhile.
  Status begin(cudaStream_t stream, bool captures);
  struct Mark {
    int op, layer;
    double bytes, flops;
  };
  Status mark(const Mark& mark, cudaStream_t stream);
  // Waits for the step and adds the seconds of each op to ops[op].
  Status finish(cudaStream_t stream, std::span<OpProfile> ops);
  // The ops of the last step that was finished. They begin where the one before ends, the first at 0.
  const std::vector<OpSpan>& spans() const { return spans_; }

 private:
  Status record(cudaStream_t stream);
  Status run_captured(cudaStream_t stream);
  bool captures_ = false;
  std::vector<cudaEvent_t> events_;  // used again by the next step
  std::vector<Mark> marks_;          // [n] what begins at event n
  std::vector<OpSpan> spans_;
};

}  // namespace moesaic::cuda
