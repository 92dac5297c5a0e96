#include "backend/reference/draft_head.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>

#include "backend/reference/linear.h"
#include "base/error.h"

namespace moesaic::reference {

Status ReferenceDraftHead::load(const Eagle3Config& config, const Eagle3Weights& weights) {
  if (target_.config.layers == 0) return invalid("draft head: load a model before it");
  if (target_.cache_allocated()) return invalid("draft head: load it before the KV cache is allocated");
  RETURN_IF_ERROR(validate(config, target_.config));
  RETURN_IF_ERROR(validate(weights, config));
  ASSIGN_OR_RETURN(boundaries_, tap_boundaries(config, target_.config));
  config_ = config, weights_ = weights;
  if (weights_.head.data == nullptr) weights_.head = target_.weights.head;
  if (weights_.embed.data == nullptr) weights_.embed = target_.weights.embed;
  rope_ = make_rope_table(config.rope, config.head_dim);
  return {};
}

Status ReferenceDraftHead::set_taps(const std::vector<int>& boundaries) {
  ASSIGN_OR_RETURN(boundaries_, tap_boundaries(config_, target_.config, boundaries));
  tapped_ = 0;
  return {};
}

std::vector<MemoryPart> ReferenceDraftHead::memory(const Eagle3Config& config, const Eagle3Weights&,
                                                   const KvLayout& layout) const {
  return {
      {kDraftCachePart, kv_token_bytes(config) * layout.page_tokens * layout.full_pages, MemoryKind::kCache}};
}

void ReferenceDraftHead::alloc_kv() {
  const size_t elements = static_cast<size_t>(target_.layout.full_pages) *
                          static_cast<size_t>(target_.layout.page_tokens) *
                          static_cast<size_t>(config_.kv_size());
  cache_ = {Rows(elements), Rows(elements)};
}

void ReferenceDraftHead::begin_step() {
  taps_.assign(target_.batch.tokens.size() * static_cast<size_t>(config_.features()), 0.0f);
  tapped_ = 0;
}

void ReferenceDraftHead::tap(int boundary, std::span<const float> x) {
  const auto hidden = static_cast<size_t>(config_.hidden), width = static_cast<size_t>(config_.features());
  for (size_t i = 0; i < boundaries_.size(); ++i) {
    if (boundaries_[i] != boundary) continue;
    for (size_t row = 0; row < x.size() / hidden; ++row)
      std::copy_n(x.data() + row * hidden, hidden, taps_.data() + row * width + i * hidden);
    ++tapped_;
  }
}

ReferenceDraftHead::Rows ReferenceDraftHead::normed(std::span<const float> x, const MatrixView& scale) const {
  const Rows s = read_vector(scale);
  Rows y(x.size());
  for (size_t i = 0; i < x.size(); i += s.size())
    rms_norm(x.subspan(i, s.size()), s, static_cast<float>(config_.rms_eps),
             std::span(y).subspan(i, s.size()));
  return y;
}

ReferenceDraftHead::Rows ReferenceDraftHead::times(const MatrixView& w, std::span<const float> x) const {
  Rows y(x.size() / static_cast<size_t>(w.cols) * static_cast<size_t>(w.rows));
  dense_linear(w, {}, x, y, target_.dense, MoePath::kAuto);
  return y;
}

// fc of the taps of these rows of the step.
ReferenceDraftHead::Rows ReferenceDraftHead::fused(std::span<const int> source_rows) const {
  const auto hidden = static_cast<size_t>(config_.hidden), width = static_cast<size_t>(config_.features());
  Rows x;
  for (const int row : source_rows) {
    const auto* from = taps_.data() + static_cast<size_t>(row) * width;
    x.insert(x.end(), from, from + width);
  }
  if (weights_.input_norm.data != nullptr) x = normed(x, weights_.input_norm);
  for (size_t i = 0; i < weights_.fc_norms.size(); ++i) {
    for (size_t row = 0; row < source_rows.size(); ++row) {
      const auto part = std::span(x).subspan(row * width + i * hidden, hidden);
      std::ranges::copy(normed(part, weights_.fc_norms[i]), part.begin());
    }
  }
  return times(weights_.fc, x);
}

ReferenceDraftHead::Rows ReferenceDraftHead::attention(const DraftRounds& rounds, const Rows& u) {
  Rows q = times(weights_.q, u), k = times(weights_.k, u), v = times(weights_.v, u), out(q.size());
  const auto q_size = static_cast<size_t>(config_.q_size()), kv_size = static_cast<size_t>(config_.kv_size());
  const Rows no_sinks(static_cast<size_t>(config_.heads), -std::numeric_limits<float>::infinity());
  const auto cache_of = [&](const std::vector<int32_t>& pages) {
    return SequenceCache{cache_, pages, target_.layout.page_tokens, kv_size};
  };
  const auto pages_of = [&](const DraftRow& row) {
    return std::vector<int32_t>(rounds.pages(row).begin(), rounds.pages(row).end());
  };
  const std::span<const DraftRow> rows = rounds.rows();
  for (size_t i = 0; i < rows.size(); ++i) {
    rotate(rope_, rows[i].position, config_.head_dim, std::span(q).subspan(i * q_size, q_size));
    rotate(rope_, rows[i].position, config_.head_dim, std::span(k).subspan(i * kv_size, kv_size));
    const std::vector<int32_t> pages = pages_of(rows[i]);
    const size_t to = cache_of(pages).offset(rows[i].position);
    std::copy_n(k.data() + i * kv_size, kv_size, cache_.keys.data() + to);
    std::copy_n(v.data() + i * kv_size, kv_size, cache_.values.data() + to);
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const int last = rows[i].position, begin = rounds.begin(rows[i]),
              first = config_.window > 0 ? std::max(begin, last - config_.window + 1) : begin;
    const std::vector<int32_t> pages = pages_of(rows[i]);
    attend_row({config_.heads, config_.kv_heads, config_.head_dim, first, last},
               std::span(q).subspan(i * q_size, q_size), no_sinks, cache_of(pages),
               std::span(out).subspan(i * q_size, q_size));
  }
  return times(weights_.o, out);
}

ReferenceDraftHead::Rows ReferenceDraftHead::layer(const DraftRounds& rounds, const Rows& g) {
  const auto hidden = static_cast<size_t>(config_.hidden);
  Rows embedded(g.size()), u;
  for (size_t i = 0; i < rounds.rows().size(); ++i)
    read_row(weights_.embed, rounds.rows()[i].token, std::span(embedded).subspan(i * hidden, hidden));
  embedded = normed(embedded, weights_.embed_norm);
  const Rows features = normed(g, weights_.hidden_norm);
  for (size_t i = 0; i < g.size(); i += hidden) {
    u.insert(u.end(), embedded.data() + i, embedded.data() + i + hidden);
    u.insert(u.end(), features.data() + i, features.data() + i + hidden);
  }
  Rows y = config_.norm_before_residual ? features : g;
  const Rows attended = attention(rounds, u);
  for (size_t i = 0; i < y.size(); ++i) y[i] += attended[i];
  const Rows t = normed(y, weights_.mlp_norm);
  Rows gate = times(weights_.gate, t);
  const Rows up = times(weights_.up, t);
  for (size_t i = 0; i < gate.size(); ++i)
    gate[i] = static_cast<float>(double{gate[i]} / (1 + std::exp(-double{gate[i]})) * up[i]);
  const Rows down = times(weights_.down, gate);
  for (size_t i = 0; i < y.size(); ++i) y[i] += down[i];
  return y;
}

namespace {

std::vector<float> rows_at(std::span<const float> x, std::span<const int> rows, size_t width) {
  std::vector<float> out;
  for (const int row : rows) {
    const auto from = x.subspan(static_cast<size_t>(row) * width, width);
    out.insert(out.end(), from.begin(), from.end());
  }
  return out;
}

}  // namespace

Status ReferenceDraftHead::draft(std::span<const DraftSequence> sequences, std::span<int32_t> tokens) {
  if (!loaded() || cache_.keys.empty()) return invalid("draft head: load one, then the KV cache");
  if (tapped_ != static_cast<int>(boundaries_.size())) return invalid("draft head: there was no step before");
  RETURN_IF_ERROR(validate(sequences, tokens.size(), target_.batch, config_, target_.layout));
  if (sequences.empty()) return {};
  DraftRounds rounds(sequences, target_.batch);
  Rows g = fused(rounds.source_rows());
  while (!rounds.rows().empty()) {
    const Rows all = layer(rounds, g);
    if (rounds.logit_rows().empty()) break;
    const Rows y = rows_at(all, rounds.logit_rows(), static_cast<size_t>(config_.hidden));
    const Rows output = normed(y, weights_.norm), scores = times(weights_.head, output);
    if (trace_) rounds.show(scores, weights_.target_ids.size(), trace_);
    rounds.choose(scores, weights_.target_ids, tokens);
    g = rows_at(config_.norm_output ? output : y, rounds.kept(), static_cast<size_t>(config_.hidden));
  }
  return {};
}

}  // namespace moesaic::reference
