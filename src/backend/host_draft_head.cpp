#include "backend/host_draft_head.h"

#include <algorithm>

#include "base/error.h"
#include "core/choose_token.h"

namespace moesaic {

Status HostDraftHead::read_norm(const MatrixView& m, const char* name, Rows& values) const {
  values.assign(m.data == nullptr ? 0 : static_cast<size_t>(m.cols), 0.0f);
  if (m.data == nullptr) return {};
  read_row(m, 0, values);
  if (all_finite(values)) return {};
  return invalid("{}: tensor '{}' row 0: NaN or infinity; the draft head is damaged", config().name, name);
}

Status HostDraftHead::load_weights(const Eagle3Weights& w) {
  RETURN_IF_ERROR(read_norm(w.input_norm, "input_norm", input_norm_));
  RETURN_IF_ERROR(read_norm(w.embed_norm, "input_layernorm", embed_norm_));
  RETURN_IF_ERROR(read_norm(w.hidden_norm, "hidden_norm", hidden_norm_));
  RETURN_IF_ERROR(read_norm(w.mlp_norm, "post_attention_layernorm", mlp_norm_));
  RETURN_IF_ERROR(read_norm(w.norm, "norm", norm_));
  fc_norms_.resize(w.fc_norms.size());
  for (size_t i = 0; i < fc_norms_.size(); ++i)
    RETURN_IF_ERROR(read_norm(w.fc_norms[i], "fc_norm", fc_norms_[i]));
  tapped_ = 0;
  return load_matrices(w, embed_);
}

Status HostDraftHead::set_taps(const std::vector<int>& boundaries) {
  RETURN_IF_ERROR(Eagle3DraftHead::set_taps(boundaries));
  tapped_ = 0;
  return {};
}

void HostDraftHead::begin_step() {
  taps_.resize(batch_.tokens.size() * static_cast<size_t>(config().features()));
  tapped_ = 0;
}

void HostDraftHead::tap(int boundary, std::span<const float> x) {
  const int64_t hidden = config().hidden, width = config().features();
  for (size_t i = 0; i < boundaries().size(); ++i) {
    if (boundaries()[i] != boundary) continue;
    for_rows(batch_.rows(), [&](int64_t row) {
      std::copy_n(x.data() + row * hidden, hidden,
                  taps_.data() + row * width + static_cast<int64_t>(i) * hidden);
    });
    ++tapped_;
  }
}

Eagle3DraftHead::RoundSize HostDraftHead::size_of(int) const {
  return {static_cast<int>(std::ssize(rounds_->rows())), static_cast<int>(std::ssize(rounds_->logit_rows()))};
}

Status HostDraftHead::fuse(const Part& part) {
  const int64_t hidden = config().hidden, width = config().features();
  inputs_.resize(static_cast<size_t>(part.rows * width));
  for_rows(part.rows, [&](int64_t r) {
    const float* from = taps_.data() + rounds_->source_rows()[static_cast<size_t>(r)] * width;
    float* to = inputs_.data() + r * width;
    std::copy_n(from, width, to);
    if (!input_norm_.empty()) norm(from, input_norm_, to);
    for (size_t i = 0; i < fc_norms_.size(); ++i, to += hidden) norm(to, fc_norms_[i], to);
  });
  multiply_fc(inputs_, part.rows, features_);
  return {};
}

Status HostDraftHead::join(const Part& part) {
  const int64_t hidden = config().hidden;
  const std::span<const DraftRow> rows = rounds_->rows();
  const std::span<const int> wanted = rounds_->logit_rows();
  inputs_.resize(static_cast<size_t>(part.rows * 2 * hidden));
  residual_.resize(wanted.size() * static_cast<size_t>(hidden));
  rows_.resize(rows.size());
  for_rows(part.rows, [&](int64_t r) {
    const DraftRow& row = rows[static_cast<size_t>(r)];
    float *embedded = inputs_.data() + r * 2 * hidden, *normed = embedded + hidden;
    read_row(embed_, row.token, {embedded, static_cast<size_t>(hidden)});
    norm(embedded, embed_norm_, embedded);
    norm(features_.data() + r * hidden, hidden_norm_, normed);
    rows_[static_cast<size_t>(r)] = {.position = row.position,
                                     .begin = rounds_->begin(row),
                                     .pages = rounds_->pages(row),
                                     .query = static_cast<int>(r)};
  });
  for (size_t i = 0; i < wanted.size(); ++i) {
    const int64_t r = wanted[i];
    const float* from =
        config().norm_before_residual ? inputs_.data() + (2 * r + 1) * hidden : features_.data() + r * hidden;
    std::copy_n(from, hidden, residual_.data() + static_cast<int64_t>(i) * hidden);
  }
  return {};
}

Status HostDraftHead::qkv(const Part&) {
  layer_qkv(rows_, inputs_);
  return {};
}

Status HostDraftHead::attend(int, int) {
  std::vector<LayerRow> wanted;
  for (const int row : rounds_->logit_rows()) wanted.push_back(rows_[static_cast<size_t>(row)]);
  layer_attend(wanted, residual_);
  return {};
}

Status HostDraftHead::mlp(int logit_rows) {
  const int64_t hidden = config().hidden;
  normed_.resize(residual_.size());
  for_rows(logit_rows,
           [&](int64_t r) { norm(residual_.data() + r * hidden, mlp_norm_, normed_.data() + r * hidden); });
  layer_mlp(logit_rows, normed_, residual_);
  return {};
}

Status HostDraftHead::unembed(int logit_rows) {
  const int64_t hidden = config().hidden;
  for_rows(logit_rows,
           [&](int64_t r) { norm(residual_.data() + r * hidden, norm_, normed_.data() + r * hidden); });
  multiply_head(normed_, logit_rows, scores_);
  return {};
}

Status HostDraftHead::choose(int) {
  const int64_t hidden = config().hidden;
  if (traced()) rounds_->show(scores_, target_ids().size(), traced());
  rounds_->choose(scores_, target_ids(), tokens_);
  const Rows& y = config().norm_output ? normed_ : residual_;
  features_.resize(rounds_->kept().size() * static_cast<size_t>(hidden));
  for (size_t i = 0; i < rounds_->kept().size(); ++i)
    std::copy_n(y.data() + rounds_->kept()[i] * hidden, hidden,
                features_.data() + static_cast<int64_t>(i) * hidden);
  return {};
}

Status HostDraftHead::draft(std::span<const DraftSequence> sequences, std::span<int32_t> tokens) {
  RETURN_IF_ERROR(ready());
  if (tapped_ != static_cast<int>(boundaries().size()))
    return invalid("draft head: there was no step before");
  RETURN_IF_ERROR(validate(sequences, tokens.size(), batch_, config(), owner().layout));
  rounds_.emplace(sequences, batch_);
  tokens_ = tokens;
  return run_rounds();
}

}  // namespace moesaic
