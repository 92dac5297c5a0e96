#include "backend/cpu/cpu_draft.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace moesaic::cpu {

void CpuDraftHead::begin_step() {
  taps_.resize(target_.batch.tokens.size() * config_.features());
  tapped_ = 0;
}

void CpuDraftHead::tap(int boundary, const std::vector<float>& x) {
  const int64_t hidden = config_.hidden, width = config_.features();
  for (size_t i = 0; i < boundaries_.size(); ++i) {
    if (boundaries_[i] != boundary) continue;
    target_.pool.for_each(target_.batch.rows(), [&](int64_t row, int) {
      std::copy_n(x.data() + row * hidden, hidden,
                  taps_.data() + row * width + static_cast<int64_t>(i) * hidden);
    });
    ++tapped_;
  }
}

void CpuDraftHead::add_product(const PackedMatrix& m, const float* x, int64_t stride, int rows, float* y,
                               int64_t y_stride, int64_t width) {
  act_.assign(target_.kernels, target_.pool, act_format(m.pack, target_.kernels), x, stride, rows, m.cols);
  for_each_tile(target_.kernels, target_.pool, workspaces_, m, act_.view(), rows, target_.chosen.tuning,
                [&](const float* tile, int first, int n, int64_t panel, int count) {
                  const int64_t columns = std::min<int64_t>(count * kPanel, width - panel * kPanel);
                  for (int t = 0; t < n; ++t) {
                    float* out = y + (first + t) * y_stride + panel * kPanel;
                    for (int64_t i = 0; i < columns; ++i) out[i] += tile[t * kPair * kPanel + i];
                  }
                });
}

// A row that is not finite becomes logits that are not, of which no token is chosen.
void CpuDraftHead::norm(const float* x, const std::vector<float>& weight, float* y) const {
  const int64_t n = std::ssize(weight);
  if (!target_.kernels.rmsnorm(x, weight.data(), n, static_cast<float>(config_.rms_eps), y))
    std::fill_n(y, n, NAN);
}

// features_ becomes fc of the taps.
void CpuDraftHead::fuse(const DraftRounds& rounds) {
  const int64_t hidden = config_.hidden, width = config_.features(), rows = std::ssize(rounds.source_rows());
  inputs_.resize(rows * width);
  target_.pool.for_each(rows, [&](int64_t r, int) {
    const float* from = taps_.data() + rounds.source_rows()[r] * width;
    float* to = inputs_.data() + r * width;
    std::copy_n(from, width, to);
    if (!input_norm_.empty()) norm(from, input_norm_, to);
    for (size_t i = 0; i < fc_norms_.size(); ++i)
      norm(to + static_cast<int64_t>(i) * hidden, fc_norms_[i], to + static_cast<int64_t>(i) * hidden);
  });
  features_.assign(rows * hidden, 0.0f);
  add_product(fc_, inputs_.data(), width, static_cast<int>(rows), features_.data(), hidden, hidden);
}

// The layer's inputs; of the rows whose logits are wanted, the residual that it adds to.
void CpuDraftHead::make_inputs(const DraftRounds& rounds) {
  const int64_t hidden = config_.hidden, rows = std::ssize(rounds.rows());
  const MatrixView& embed = own_embed_.data != nullptr ? own_embed_ : target_.embed;
  inputs_.resize(rows * 2 * hidden);
  residual_.resize(std::ssize(rounds.logit_rows()) * hidden);
  target_.pool.for_each(rows, [&](int64_t r, int) {
    float *embedded = inputs_.data() + r * 2 * hidden, *normed = embedded + hidden;
    read_row(embed, rounds.rows()[r].token, {embedded, static_cast<size_t>(hidden)});
    norm(embedded, embed_norm_, embedded);
    norm(features_.data() + r * hidden, hidden_norm_, normed);
  });
  for (size_t i = 0; i < rounds.logit_rows().size(); ++i) {
    const int64_t r = rounds.logit_rows()[i];
    const float* from =
        config_.norm_before_residual ? inputs_.data() + (2 * r + 1) * hidden : features_.data() + r * hidden;
    std::copy_n(from, hidden, residual_.data() + static_cast<int64_t>(i) * hidden);
  }
}

void CpuDraftHead::rotate_and_append(const DraftRow& row, std::span<const int32_t> pages, int64_t index) {
  const int dim = config_.head_dim, half = dim / 2;
  float* q = qkv_.data() + index * (config_.q_size() + 2 * config_.kv_size());
  float *k = q + config_.q_size(), *v = k + config_.kv_size();
  float cosine[128], sine[128];
  for (int i = 0; i < half; ++i) {
    const double angle = row.position * rope_.inverse_frequency[i];
    cosine[i] = static_cast<float>(std::cos(angle) * rope_.attention_factor);
    sine[i] = static_cast<float>(std::sin(angle) * rope_.attention_factor);
  }
  target_.kernels.rope(q, config_.heads, dim, cosine, sine);
  target_.kernels.rope(k, config_.kv_heads, dim, cosine, sine);
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  for (int h = 0; h < config_.heads; ++h) {
    const int64_t at = index * config_.heads + h;
    int32_t sum;
    q_scale_[at] = scale * target_.kernels.quantize_int8(q + h * dim, dim, q_.data() + at * dim, &sum);
    q_bias_[at] = -target_.kernels.weight_offset * sum;
  }
  const int page = pages[row.position / kPageTokens];
  for (int h = 0; h < config_.kv_heads; ++h)
    kv_.append(target_.kernels, page, row.position % kPageTokens, h, k + h * dim, v + h * dim);
}

// index: of logit_rows().
void CpuDraftHead::attend_row(const DraftRounds& rounds, int64_t index, int kv_head) {
  const int64_t source = rounds.logit_rows()[index];
  const DraftRow& row = rounds.rows()[source];
  const int group = config_.heads / config_.kv_heads, dim = config_.head_dim;
  const int64_t kv_offset = static_cast<int64_t>(kv_head) * kPageTokens;
  const int begin = rounds.begin(row);
  const int first = config_.window > 0 ? std::max(begin, row.position - config_.window + 1) : begin;
  for (int head = kv_head * group; head < (kv_head + 1) * group; head += 8) {
    const int64_t at = source * config_.heads + head;
    target_.kernels.attend({.heads = std::min(8, (kv_head + 1) * group - head),
                            .head_dim = dim,
                            .q = q_.data() + at * dim,
                            .q_bias = q_bias_.data() + at,
                            .q_scale = q_scale_.data() + at,
                            .sinks = no_sinks_.data(),
                            .pages = rounds.pages(row).data(),
                            .k_cache = kv_.k.as<uint8_t>() + kv_offset * dim,
                            .v_cache = kv_.v.as<int16_t>() + kv_offset * dim,
                            .k_scale = kv_.k_scale.as<float>() + kv_offset,
                            .v_scale = kv_.v_scale.as<float>() + kv_offset,
                            .page_stride = kv_.page_stride(),
                            .scale_page_stride = kv_.scale_page_stride(),
                            .first = first,
                            .last = row.position,
                            .out = attended_.data() + (index * config_.heads + head) * dim});
  }
}

void CpuDraftHead::append(const DraftRounds& rounds) {
  const int rows = static_cast<int>(std::ssize(rounds.rows()));
  const int64_t width = config_.q_size() + 2 * config_.kv_size();
  qkv_.assign(rows * width, 0.0f);
  add_product(qkv_matrix_, inputs_.data(), 2 * config_.hidden, rows, qkv_.data(), width, width);
  q_.resize(static_cast<size_t>(rows) * config_.q_size());
  q_bias_.resize(static_cast<size_t>(rows) * config_.heads);
  q_scale_.resize(static_cast<size_t>(rows) * config_.heads);
  target_.pool.for_each(rows, [&](int64_t r, int) {
    const DraftRow& row = rounds.rows()[r];
    rotate_and_append(row, rounds.pages(row), r);
  });
}

void CpuDraftHead::attend(const DraftRounds& rounds) {
  const int rows = static_cast<int>(std::ssize(rounds.logit_rows()));
  attended_.resize(static_cast<size_t>(rows) * config_.q_size());
  // Rows of one KV head follow each other, so that its pages stay in cache.
  target_.pool.for_each(static_cast<int64_t>(rows) * config_.kv_heads, [&](int64_t item, int) {
    attend_row(rounds, item % rows, static_cast<int>(item / rows));
  });
  add_product(o_, attended_.data(), config_.q_size(), rows, residual_.data(), config_.hidden, config_.hidden);
}

// silu(gate) * up is gpt-oss's gate * sigmoid(alpha gate) * (up + 1) with alpha 1 and up less by 1.
void CpuDraftHead::mlp(int rows) {
  const int64_t hidden = config_.hidden, width = config_.intermediate;
  normed_.resize(rows * hidden);
  middle_.resize(rows * width);
  target_.pool.for_each(rows, [&](int64_t r, int) {
    norm(residual_.data() + r * hidden, mlp_norm_, normed_.data() + r * hidden);
  });
  act_.assign(target_.kernels, target_.pool, act_format(gate_up_.pack, target_.kernels), normed_.data(),
              hidden, rows, hidden);
  constexpr float kNoLimit = 1e30f;
  for_each_tile(target_.kernels, target_.pool, workspaces_, gate_up_, act_.view(), rows,
                target_.chosen.tuning, [&](const float* tile, int first, int n, int64_t panel, int) {
                  target_.kernels.swiglu_tile(tile, zeros_.data(), minus_ones_.data(), n, 1.0f, kNoLimit,
                                              middle_.data() + first * width + panel / kPair * kPanel, width);
                });
  add_product(down_, middle_.data(), width, rows, residual_.data(), hidden, hidden);
}

void CpuDraftHead::score(const DraftRounds& rounds) {
  const int64_t hidden = config_.hidden, rows = std::ssize(rounds.logit_rows());
  const PackedMatrix& head = own_head_.panels > 0 ? own_head_ : target_.head;
  normed_.resize(rows * hidden);
  for (int64_t i = 0; i < rows; ++i) norm(residual_.data() + i * hidden, norm_, normed_.data() + i * hidden);
  scores_.assign(rows * config_.draft_vocab, 0.0f);
  add_product(head, normed_.data(), hidden, static_cast<int>(rows), scores_.data(), config_.draft_vocab,
              config_.draft_vocab);
}

void CpuDraftHead::next_features(const DraftRounds& rounds) {
  const int64_t hidden = config_.hidden, rows = std::ssize(rounds.kept());
  const std::vector<float>& y = config_.norm_output ? normed_ : residual_;
  features_.resize(rows * hidden);
  for (int64_t i = 0; i < rows; ++i)
    std::copy_n(y.data() + rounds.kept()[i] * hidden, hidden, features_.data() + i * hidden);
}

Status CpuDraftHead::draft(std::span<const DraftSequence> sequences, std::span<int32_t> tokens) {
  if (!loaded() || kv_.pages == 0) return invalid("draft head: load one, then the KV cache");
  if (tapped_ != static_cast<int>(boundaries_.size())) return invalid("draft head: there was no step before");
  RETURN_IF_ERROR(validate(sequences, tokens.size(), target_.batch, config_, target_.layout));
  if (sequences.empty()) return {};
  DraftRounds rounds(sequences, target_.batch);
  fuse(rounds);
  while (!rounds.rows().empty()) {
    make_inputs(rounds);
    append(rounds);
    // Of the other rows nothing is wanted but K and V.
    if (rounds.logit_rows().empty()) break;
    attend(rounds);
    mlp(static_cast<int>(std::ssize(rounds.logit_rows())));
    score(rounds);
    if (trace_) rounds.show(scores_, target_ids_.size(), trace_);
    rounds.choose(scores_, target_ids_, tokens);
    next_features(rounds);
  }
  return {};
}

}  // namespace moesaic::cpu
