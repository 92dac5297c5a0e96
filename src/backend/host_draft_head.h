// A draft head on a backend that computes on the host: what lies between the ops of its layer. The reference
// and the cpu differ in the ops.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "backend/eagle3_head.h"
#include "backend/layer_rows.h"

namespace moesaic {

class HostDraftHead : public Eagle3DraftHead {
 public:
  // batch: of the last step.
  HostDraftHead(Owner owner, const Batch& batch) : Eagle3DraftHead(std::move(owner)), batch_(batch) {}

  Status set_taps(const std::vector<int>& boundaries) final;
  Status draft(std::span<const DraftSequence> sequences, std::span<int32_t> tokens) final;

  void begin_step();
  // The residual stream x [rows, hidden] after so many blocks.
  void tap(int boundary, std::span<const float> x);

 protected:
  using Rows = std::vector<float>;

  // Weights beside the norms, which are read as floats. embed: the table whose rows are read from now on.
  virtual Status load_matrices(const Eagle3Weights& weights, MatrixView& embed) = 0;
  virtual void for_rows(int64_t rows, const std::function<void(int64_t)>& body) = 0;
  // y: not a number where x is not finite. x and y may be the same.
  virtual void norm(const float* x, std::span<const float> weight, float* y) const = 0;
  virtual void multiply_fc(const Rows& x, int rows, Rows& y) = 0;
  virtual void multiply_head(const Rows& x, int rows, Rows& y) = 0;
  // The layer: u [rows, 2 hidden] to Q, K and V; attention of rows whose `query` is that of the row of u,
  // added to x; the MLP of normed x, added to x.
  virtual void layer_qkv(std::span<const LayerRow> rows, const Rows& u) = 0;
  virtual void layer_attend(std::span<const LayerRow> rows, Rows& x) = 0;
  virtual void layer_mlp(int rows, const Rows& normed, Rows& x) = 0;

 private:
  Status load_weights(const Eagle3Weights& weights) final;
  Status read_norm(const MatrixView& m, const char* name, Rows& values) const;
  RoundSize size_of(int round) const final;
  Status fuse(const Part& part) final;
  Status join(const Part& part) final;
  Status qkv(const Part& part) final;
  Status attend(int round, int logit_rows) final;
  Status mlp(int logit_rows) final;
  Status unembed(int logit_rows) final;
  Status choose(int round) final;

  const Batch& batch_;
  Rows input_norm_, embed_norm_, hidden_norm_, mlp_norm_, norm_;  // empty: the head has none
  std::vector<Rows> fc_norms_;
  MatrixView embed_;

  Rows taps_;       // [rows of the step, features]
  int tapped_ = 0;  // taps of the last step that are there
  // One draft.
  std::optional<DraftRounds> rounds_;
  std::span<int32_t> tokens_;
  std::vector<LayerRow> rows_;  // the round's
  Rows features_;               // [rows, hidden]: g
  Rows inputs_;                 // [rows, features or 2 hidden]
  Rows residual_, normed_;      // [logit rows, hidden]: r, and then y
  Rows scores_;                 // [logit rows, draft_vocab]
};

}  // namespace moesaic
