// What passes between host and device in a step, so that a step can be launched while the one before it still
// runs: two places for what the host packs, two for what it is told.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "backend/cuda/ops/sample.h"
#include "backend/cuda/runtime/device.h"
#include "backend/cuda/runtime/step_input.h"
#include "moesaic/types.h"

namespace moesaic::cuda {

SampledToken token_of(const SampleResult& result);

class Exchange {
 public:
  ~Exchange();
  // max_rows: of a step.
  Status open(int max_rows);
  // Makes room for `count` int32 of inputs. The stream must be idle when that is more than there was: true.
  bool lacks(size_t count) const { return count * sizeof(int32_t) > inputs_.bytes(); }
  Status grow(size_t count);

  // Sends a step's inputs, the tokens that the step before drew among them.
  Status send(const StepShape& shape, const StepLayout& at, std::vector<int32_t>& packed,
              cudaStream_t stream);
  const int32_t* input(int offset) const { return inputs_.as<int32_t>() + offset; }
  // Draws the tokens of the step's logits.
  Status draw(const StepShape& shape, const StepLayout& at, const float* logits, int vocab, const int* fault,
              cudaStream_t stream);
  // A step with draws is on its way. At most two are.
  Status launched(cudaStream_t stream);
  // Waits for the earliest of them: the fault it left.
  Result<int> sampled(std::span<SampledToken> tokens);
  // What is on its way interests nobody any more.
  void forget() { under_way_ = 0; }

 private:
  int max_rows_ = 0;
  DeviceBuffer inputs_, drawn_;
  std::array<PinnedBuffer, 2> packed_;  // of steps in turn
  PinnedBuffer told_;                   // [2, max_rows] SampleResult, of steps with draws in turn
  std::array<cudaEvent_t, 2> events_{};
  unsigned steps_ = 0, draws_ = 0;  // so far
  int under_way_ = 0;
};

}  // namespace moesaic::cuda
