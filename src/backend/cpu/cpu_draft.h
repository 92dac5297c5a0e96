// The draft head of the cpu backend: its layer runs through the ops of the model's (layer_ops.h).
#pragma once

#include <functional>

#include "backend/cpu/layer_loader.h"
#include "backend/host_draft_head.h"

namespace moesaic::cpu {

class CpuDraftHead final : public HostDraftHead {
 public:
  // The parts of its backend that the head uses. batch: of the last step.
  struct Target {
    const Kernels& kernels;
    ThreadPool& pool;
    const BackendOptions& options;
    const ModelConfig& config;
    const MatrixView& embed;
    const PackedMatrix& head;
    const ChosenTuning& chosen;
    const KvLayout& layout;
    const Batch& batch;
    std::function<bool()> cache_allocated;
  };
  explicit CpuDraftHead(const Target& target)
      : HostDraftHead({target.config, target.layout, target.cache_allocated}, target.batch),
        target_(target),
        ops_(target.kernels, target.pool, target.chosen, MoePath::kAuto) {}

  double kv_token_bytes(const Eagle3Config& c) const override { return c.kv_heads * (3.0 * c.head_dim + 8); }

 private:
  Status load_matrices(const Eagle3Weights& weights, MatrixView& embed) override;
  Status allocate_cache() override;
  void drop() override { layer_.kv = {}; }
  double weight_bytes(const Eagle3Config& config, const Eagle3Weights& weights) const override;

  void for_rows(int64_t rows, const std::function<void(int64_t)>& body) override {
    target_.pool.for_each(rows, [&](int64_t r, int) { body(r); });
  }
  void norm(const float* x, std::span<const float> weight, float* y) const override;
  void multiply(const PackedMatrix& m, const Rows& x, int rows, int64_t width, Rows& y);
  void multiply_fc(const Rows& x, int rows, Rows& y) override { multiply(fc_, x, rows, config().hidden, y); }
  void multiply_head(const Rows& x, int rows, Rows& y) override {
    multiply(own_head_.panels > 0 ? own_head_ : target_.head, x, rows, config().draft_vocab, y);
  }
  void layer_qkv(std::span<const LayerRow> rows, const Rows& u) override {
    ops_.turn(rope_, config().head_dim, rows);
    // Drafts of zeros are only worse: the target verifies them.
    static_cast<void>(ops_.qkv(layer_, rows, u.data()));
  }
  void layer_attend(std::span<const LayerRow> rows, Rows& x) override {
    ops_.attend(layer_, rows);
    ops_.project(layer_, static_cast<int>(std::ssize(rows)), x.data());
  }
  void layer_mlp(int rows, const Rows& normed, Rows& x) override {
    static_cast<void>(ops_.mlp(layer_, rows, normed.data(), x.data()));  // a dense one does not fail
  }

  Target target_;
  LayerOps ops_;
  RopeTable rope_;
  Layer layer_;
  PackedMatrix fc_, own_head_;  // without panels: the target's
  Table own_embed_;
};

}  // namespace moesaic::cpu
