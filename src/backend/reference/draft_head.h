// The draft head's oracle: scalar code, double accumulation, weights read from the checkpoint's views.
#pragma once

#include <functional>

#include "backend/draft_head.h"
#include "backend/reference/attention.h"

namespace moesaic::reference {

class ReferenceDraftHead final : public DraftHead {
 public:
  // What the head shares with the backend that owns it.
  struct Target {
    const ModelConfig& config;
    const ModelWeights& weights;
    const KvLayout& layout;
    const Batch& batch;  // of the last step
    const std::optional<Format>& dense;
    std::function<bool()> cache_allocated;
  };
  explicit ReferenceDraftHead(const Target& target) : target_(target) {}

  Status load(const Eagle3Config& config, const Eagle3Weights& weights) override;
  bool loaded() const override { return !boundaries_.empty(); }
  Status set_taps(const std::vector<int>& boundaries) override;
  void trace(DraftTrace trace) override { trace_ = std::move(trace); }
  std::vector<MemoryPart> memory(const Eagle3Config& config, const Eagle3Weights& weights,
                                 const KvLayout& layout) const override;
  double kv_token_bytes(const Eagle3Config& c) const override { return 2.0 * sizeof(float) * c.kv_size(); }
  Status draft(std::span<const DraftSequence> sequences, std::span<int32_t> tokens) override;

  // The model is another one: the head is gone.
  void unload() { boundaries_.clear(), cache_ = {}, tapped_ = 0; }
  void alloc_kv();
  void begin_step();
  // The residual stream x [rows, hidden] after so many blocks.
  void tap(int boundary, std::span<const float> x);
  // Of a loaded head and its cache of the target's layout.
  std::vector<MemoryPart> memory(const KvLayout& layout) const { return memory(config_, weights_, layout); }

 private:
  using Rows = std::vector<float>;
  Rows normed(std::span<const float> x, const MatrixView& scale) const;
  Rows times(const MatrixView& w, std::span<const float> x) const;
  Rows fused(std::span<const int> source_rows) const;
  Rows attention(const DraftRounds& rounds, const Rows& u);
  // y [rows, hidden] of this round's rows.
  Rows layer(const DraftRounds& rounds, const Rows& g);

  Target target_;
  Eagle3Config config_;
  Eagle3Weights weights_;
  RopeTable rope_;
  std::vector<int> boundaries_;
  LayerCache cache_;
  DraftTrace trace_;
  Rows taps_;       // [rows of the step, features]
  int tapped_ = 0;  // taps of the last step that are there
};

}  // namespace moesaic::reference
