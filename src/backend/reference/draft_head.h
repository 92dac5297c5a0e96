// The draft head's oracle: its layer runs through the ops of the model's (layer_ops.h).
#pragma once

#include "backend/host_draft_head.h"
#include "backend/reference/layer_ops.h"

namespace moesaic::reference {

class ReferenceDraftHead final : public HostDraftHead {
 public:
  // The parts of its backend that the head uses. batch: of the last step.
  struct Target {
    const ModelConfig& config;
    const ModelWeights& weights;
    const KvLayout& layout;
    const Batch& batch;
    const std::optional<Format>& dense;
    std::function<bool()> cache_allocated;
  };
  explicit ReferenceDraftHead(const Target& target)
      : HostDraftHead({target.config, target.layout, target.cache_allocated}, target.batch),
        model_(target.weights),
        dense_(target.dense) {}

  double kv_token_bytes(const Eagle3Config& c) const override { return 2.0 * sizeof(float) * c.kv_size(); }

 private:
  Status load_matrices(const Eagle3Weights& weights, MatrixView& embed) override;
  Status allocate_cache() override;
  void drop() override { layer_ = {}, weights_ = {}; }
  // The weights are read from the mapped file.
  double weight_bytes(const Eagle3Config&, const Eagle3Weights&) const override { return 0; }

  void for_rows(int64_t rows, const std::function<void(int64_t)>& body) override;
  void norm(const float* x, std::span<const float> weight, float* y) const override;
  void multiply_fc(const Rows& x, int, Rows& y) override { y = product(weights_.fc, {}, x, precision()); }
  void multiply_head(const Rows& x, int, Rows& y) override { y = product(weights_.head, {}, x, precision()); }
  void layer_qkv(std::span<const LayerRow> rows, const Rows& u) override {
    q_ = reference::qkv(layer_, rows, u, precision()).q;
  }
  void layer_attend(std::span<const LayerRow> rows, Rows& x) override {
    project(layer_, reference::attend(layer_, rows, q_), x, precision());
  }
  void layer_mlp(int, const Rows& normed, Rows& x) override {
    add_mlp(layer_.shape, layer_.weights, {}, normed, x, precision());
  }
  Precision precision() const { return {.dense = dense_}; }

  const ModelWeights& model_;
  const std::optional<Format>& dense_;
  Eagle3Weights weights_;
  Layer layer_;
  Rows q_;
};

}  // namespace moesaic::reference
