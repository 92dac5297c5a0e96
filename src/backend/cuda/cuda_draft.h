// The draft head of the cuda backend: products by the kernels of the target's dense layers, K and V in pages
// of their own, as the target's lie. All rounds of a draft are given to the stream at once where the device
// samples; elsewhere, and while drafts are traced, the host chooses each round's tokens from its logits.
#pragma once

#include <array>
#include <functional>
#include <utility>
#include <vector>

#include "backend/cuda/kernels/common/draft.h"
#include "backend/cuda/kernels/common/sample.h"
#include "backend/cuda/layout/model.h"
#include "backend/cuda/ops/layer_ops.h"
#include "backend/cuda/ops/select.h"
#include "backend/cuda/step/draft_input.h"
#include "backend/cuda/weights/draft.h"
#include "backend/eagle3_head.h"

namespace moesaic::cuda {

class CudaDraftHead final : public Eagle3DraftHead {
 public:
  // The parts of its backend that the head uses.
  struct Shared {
    const BackendOptions& options;
    const Target& target;
    const LoadedModel& model;
    const KvLayout& layout;
    const cudaStream_t& stream;
    const StepWait& wait;
    std::function<bool()> cache_allocated;
    std::function<Status()> retire_graphs;  // captured steps: they copy taps at the old boundaries
    int rows_at_once = 512;                 // rows of a prompt that are taken in together, at most
  };
  explicit CudaDraftHead(const Shared& shared)
      : Eagle3DraftHead({shared.model.config, shared.layout, shared.cache_allocated}), shared_(shared) {}
  ~CudaDraftHead() override;
  CudaDraftHead(const CudaDraftHead&) = delete;
  CudaDraftHead& operator=(const CudaDraftHead&) = delete;

  Status set_taps(const std::vector<int>& boundaries) override;
  double kv_token_bytes(const Eagle3Config& config) const override;
  Status draft(std::span<const DraftSequence> sequences, std::span<int32_t> tokens) override;
  // Where the device samples, and nobody looks on.
  bool drafts_ahead() const override;
  Result<int64_t> begin_draft(std::span<const SequenceAhead> sequences) override;
  Result<double> finish_draft(int64_t begun, std::span<int32_t> tokens) override;

  void begin_step(const Batch& batch);
  // Gives the stream copies of the residual stream x [rows, hidden] after so many blocks, where the head taps
  // it.
  Status tap(int boundary, const float* x, int rows, const DeferredResidual& deferred);
  // step: what it leaves on the device for a draft that is begun behind it; null tokens: it did not sample.
  struct Step {
    const int32_t *tokens = nullptr, *positions = nullptr, *sampled = nullptr;
    const int32_t* moved = nullptr;  // or null
  };
  void end_step(const Step& step) { step_ = step, tapped_ = true; }
  // The results of the draft behind the last step, from which MoveOn (kernels/common/draft.h) makes the next
  // step's inputs; null: there is none.
  const int32_t* accepted() const { return begun_ ? arena_.accepted.as<int32_t>() : nullptr; }
  const int32_t* drafts() const { return arena_.drafts.as<int32_t>(); }

 private:
  static constexpr int kFirstLogitRows = 64;  // for which room is allocated with the head, and counted
  // For rows_at_once() rows; taps for max_rows.
  struct Arena {
    DeviceBuffer taps;              // [rows of the step, taps, hidden] F32
    DeviceBuffer fused;             // [rows, taps, hidden] of 16 bits
    DeviceBuffer joined;            // [rows, 2 hidden] of 16 bits
    DeviceBuffer q;                 // [rows, q_size] BF16
    DeviceBuffer fault;             // an int that norms may set and nobody reads
    DeviceBuffer accepted, drafts;  // [rows of the step], and kMostDraft of each: of its sequences
  };
  Status load_weights(const Eagle3Weights& weights) override;
  Status allocate_cache() override;
  void drop() override;
  double weight_bytes(const Eagle3Config& config, const Eagle3Weights& weights) const override;
  RoundSize size_of(int round) const override;
  int rows_at_once() const override;
  Status fuse(const Part& part) override;
  Status join(const Part& part) override;
  Status qkv(const Part& part) override;
  Status attend(int round, int logit_rows) override;
  Status mlp(int logit_rows) override;
  Status unembed(int logit_rows) override;
  Status choose(int round) override;

  std::vector<Wanted> wanted(Arena& arena, const Eagle3Config& config) const;
  // For as many logit rows, and rows of all rounds, as there have been.
  struct RoundBuffers {
    DeviceBuffer rotation;            // [rows of all rounds, head_dim / 2]
    DeviceBuffer features;            // [rows, hidden] F32: g
    DeviceBuffer tiles;               // LinearSetup::tiles
    DeviceBuffer placed_q, attended;  // [logit rows, q_size]
    DeviceBuffer residual;            // [logit rows, hidden] F32: r, and then y
    DeviceBuffer normed, output;      // [logit rows, hidden] of 16 bits; F32
    DeviceBuffer middle;              // [logit rows, intermediate] of 16 bits
    DeviceBuffer logits;              // [logit rows, draft_vocab]
    DeviceBuffer chosen;   // [kMostDraft, logit rows] draft tokens, or the target's if the host chose
    DeviceBuffer results;  // [logit rows] SampleResult, not read
  };
  std::vector<Wanted> wanted(RoundBuffers& buffers, const Eagle3Config& config, int logit_rows,
                             int all_rows) const;
  Status allocate_rounds(const Eagle3Config& config, int logit_rows, int all_rows);
  int first_rows() const;  // rows of all rounds, for which there is room at once
  size_t kv_element_bytes() const { return shared_.options.kv == KvFormat::kFp8 ? 1 : 2; }
  const Matrix& lm_head() const { return weights_.head.rows > 0 ? weights_.head : shared_.model.head; }
  LinearSetup setup() {
    return {shared_.target, shared_.model.slab_layout, buffers_.tiles.as<void>(), shared_.stream};
  }
  const int32_t* input(int offset) { return flight().inputs.as<int32_t>() + offset; }
  int32_t* chosen(int round) const {
    return buffers_.chosen.as<int32_t>() + static_cast<size_t>(round) * most_logit_rows_;
  }
  float joined_factor() const;
  Norm norm_of_residual(const DeviceBuffer& weight, float factor, Kind next, int rows) const;

  Status make_room();
  Status send();
  Status rotate();
  Status hold();
  Status keep();
  Status run();
  Status choose_on_device(int round);
  Status choose_on_host(int round);
  Status begin_next(int round);
  Status collect(std::span<const DraftSequence> sequences, std::span<int32_t> tokens);

  Shared shared_;
  DraftWeights weights_;
  Batch batch_;  // the last step's
  Step step_;
  bool tapped_ = false, begun_ = false;  // behind it

  Arena arena_;
  RoundBuffers buffers_;
  PinnedBuffer pinned_logits_, pinned_chosen_;
  // Two drafts may be begun: this belongs to even and odd ones.
  struct Flight {
    DeviceBuffer inputs;
    PinnedBuffer packed, drafts;
    cudaEvent_t sent = nullptr;  // `packed` has been read
    cudaEvent_t from = nullptr, done = nullptr;
    std::vector<std::pair<int, int>> wanted;  // sequence of the step, drafts
  };
  std::array<Flight, 2> flights_;
  int64_t drafts_ = 0;             // so far
  cudaStream_t copies_ = nullptr;  // carries inputs, beside what runs
  Flight& flight() { return flights_[static_cast<size_t>(drafts_) % 2]; }
  int most_logit_rows_ = 0, most_rows_ = 0;

  DraftInput input_;
  bool host_chooses_ = false;
};

}  // namespace moesaic::cuda
