// The draft head of the cpu backend: weights in panels as its other dense matrices, K and V in a KvCache of
// its own, products of all sequences' rows together.
#pragma once

#include <functional>
#include <vector>

#include "backend/cpu/gemm.h"
#include "backend/cpu/kv_cache.h"
#include "backend/draft_head.h"

namespace moesaic::cpu {

class CpuDraftHead final : public DraftHead {
 public:
  // What the head shares with the backend that owns it.
  struct Target {
    const Kernels& kernels;
    ThreadPool& pool;
    const BackendOptions& options;
    const ModelConfig& config;
    const MatrixView& embed;
    const PackedMatrix& head;
    const ChosenTuning& chosen;
    const KvLayout& layout;
    const Batch& batch;  // of the last step
    std::function<bool()> cache_allocated;
  };
  explicit CpuDraftHead(const Target& target) : target_(target) {}

  Status load(const Eagle3Config& config, const Eagle3Weights& weights) override;
  bool loaded() const override { return !boundaries_.empty(); }
  Status set_taps(const std::vector<int>& boundaries) override;
  void trace(DraftTrace trace) override { trace_ = std::move(trace); }
  std::vector<MemoryPart> memory(const Eagle3Config& config, const Eagle3Weights& weights,
                                 const KvLayout& layout) const override;
  double kv_token_bytes(const Eagle3Config& c) const override { return c.kv_heads * (3.0 * c.head_dim + 8); }
  Status draft(std::span<const DraftSequence> sequences, std::span<int32_t> tokens) override;

  void unload();  // the model is another one
  Status alloc_kv();
  void begin_step();
  // The residual stream x [rows, hidden] after so many blocks.
  void tap(int boundary, const std::vector<float>& x);
  std::vector<MemoryPart> memory(const KvLayout& layout) const;  // of a loaded head

 private:
  Pack pack_format_of(const MatrixView& m) const;
  Result<PackedMatrix> pack(const std::vector<const MatrixView*>& sections, const char* name) const;
  Result<PackedMatrix> pack_gate_up(const Eagle3Weights& w) const;
  Status load_norms(const Eagle3Weights& w);
  Status load_matrices(const Eagle3Weights& w);
  Status load_embed(const MatrixView& embed);
  double weight_bytes(const Eagle3Weights& weights) const;

  // y[r] += m x[r], both by rows of their stride in floats.
  void add_product(const PackedMatrix& m, const float* x, int64_t stride, int rows, float* y,
                   int64_t y_stride, int64_t width);
  void norm(const float* x, const std::vector<float>& weight, float* y) const;
  // The steps of a round: features_ and rows to residual_.
  void fuse(const DraftRounds& rounds);
  void make_inputs(const DraftRounds& rounds);
  void rotate_and_append(const DraftRow& row, std::span<const int32_t> pages, int64_t index);
  void append(const DraftRounds& rounds);
  void attend_row(const DraftRounds& rounds, int64_t index, int kv_head);
  void attend(const DraftRounds& rounds);
  void mlp(int rows);
  void score(const DraftRounds& rounds);
  void next_features(const DraftRounds& rounds);

  Target target_;
  Eagle3Config config_;
  RopeTable rope_;
  std::vector<int> boundaries_;
  double weight_bytes_ = 0;
  std::vector<float> input_norm_, embed_norm_, hidden_norm_, mlp_norm_, norm_;
  std::vector<std::vector<float>> fc_norms_;
  std::vector<float> no_sinks_, zeros_, minus_ones_;
  PackedMatrix fc_, qkv_matrix_, o_, gate_up_, down_, own_head_;
  Buffer embed_data_;
  MatrixView own_embed_;
  std::vector<int32_t> target_ids_;
  std::vector<Workspace> workspaces_;
  KvCache kv_;
  DraftTrace trace_;

  std::vector<float> taps_;  // [rows of the step, features]
  int tapped_ = 0;           // taps of the last step that are there
  // One round.
  std::vector<float> features_;           // [rows, hidden]: g
  std::vector<float> inputs_, qkv_;       // [rows, features or 2 hidden | q, k, v]
  std::vector<float> residual_, normed_;  // [logit rows, hidden]: r, and then y
  std::vector<float> attended_, middle_;  // [logit rows, q_size | intermediate]
  std::vector<float> scores_;             // [logit rows, draft_vocab]
  std::vector<int8_t> q_;                 // [rows, q_size]
  std::vector<int32_t> q_bias_;           // [rows, heads]
  std::vector<float> q_scale_;            // [rows, heads]
  ActRows act_;
};

}  // namespace moesaic::cpu
