// Data that passes between host and device in a step. Inputs and results have two buffers each, so that a
// step can be launched while the previous one still runs.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "backend/cuda/kernels/common/sample.h"
#include "backend/cuda/runtime/device.h"
#include "backend/cuda/step/step_input.h"
#include "moesaic/types.h"

namespace moesaic::cuda {

SampledToken token_of(const SampleResult& result);

// Edits as edit_logits() reads them: rows, tokens and masks behind each other, where the last two begin and
// all end.
struct PackedEdits {
  int rows = 0;
  size_t tokens = 0, masks = 0, bytes = 0;
  RowEdits at(std::byte* copy) const;
};
size_t packed_bytes(const EditedRow& row);
PackedEdits pack_edits(std::span<const EditedRow> rows, std::byte* out);  // out: the sum of packed_bytes()

class StepIo {
 public:
  ~StepIo();
  // max_rows: of a step; vocab: of its logits.
  Status open(int max_rows, int vocab);
  // Makes room for `count` int32 of inputs. The stream must be idle when that is more than there was: true.
  bool lacks(size_t count) const { return count * sizeof(int32_t) > inputs_.bytes(); }
  Status grow(size_t count);

  // Sends a step's inputs, among them the tokens that the previous step sampled.
  Status send(const StepShape& shape, const StepLayout& at, std::vector<int32_t>& packed,
              cudaStream_t stream);
  // Behind that: what the step takes over from the one before and from the draft behind it.
  Status move_on(const StepLayout& at, const PackedContinuations& continuations, const int32_t* accepted,
                 const int32_t* drafts, cudaStream_t stream);
  const int32_t* input(int offset) const { return inputs_.as<int32_t>() + offset; }
  int32_t* inputs() { return inputs_.as<int32_t>(); }
  const int32_t* sampled_tokens() const { return sampled_tokens_.as<int32_t>(); }  // the last step's
  // Samples the tokens of the step's logits, by so many CTAs a row.
  Status sample(const StepShape& shape, const StepLayout& at, const float* logits, int vocab, int ctas,
                const int* fault, cudaStream_t stream);
  // A sampling step is in flight from here on, and the logits of these rows, at most kHostRows, on their way
  // to the host. At most two steps are.
  Status launched(const float* logits, std::span<const int32_t> host_rows, cudaStream_t stream);
  // Changes logits of the step that was launched last and samples these rows anew.
  Status edit(const StepLayout& at, std::span<const EditedRow> rows, float* logits, int ctas,
              const int* fault, const StepWait& wait, cudaStream_t stream);
  // Waits for the earliest of them. logits: [host_rows, vocab]. Gives the fault it left.
  Result<int> sampled(std::span<SampledToken> tokens, std::span<float> logits, const StepWait& wait);
  // Between steps, the host's buffer for logits: [2 kHostRows, vocab].
  std::span<float> host_logits() const {
    return {host_logits_.as<float>(), host_logits_.bytes() / sizeof(float)};
  }
  static constexpr int kHostRows = 64;
  int in_flight() const { return in_flight_; }
  // Drops the results of all steps in flight.
  void forget() { in_flight_ = 0; }

 private:
  int max_rows_ = 0;
  DeviceBuffer inputs_, sampled_tokens_;
  std::array<PinnedBuffer, 2> packed_;  // for even and odd steps
  PinnedBuffer results_;                // [2, max_rows] SampleResult, of even and odd sampling steps
  PinnedBuffer host_logits_;            // [2, kHostRows, vocab], of the same
  size_t vocab_ = 0;
  std::array<PinnedBuffer, 2> packed_edits_;  // for even and odd sampling steps; in parts if they are more
  DeviceBuffer edits_;
  std::array<cudaEvent_t, 2> events_{};
  unsigned steps_ = 0, sampling_steps_ = 0;  // so far
  int in_flight_ = 0;
};

}  // namespace moesaic::cuda
