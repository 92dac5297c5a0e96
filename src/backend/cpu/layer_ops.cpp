#include "backend/cpu/layer_ops.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "base/error.h"

namespace moesaic::cpu {
namespace {

// Rows of a loop that does little for each.
constexpr int64_t kRowsAtATime = 32;
int64_t chunks_of(int64_t rows) { return (rows + kRowsAtATime - 1) / kRowsAtATime; }

}  // namespace

void LayerOps::turn(const RopeTable& rope, int head_dim, std::span<const LayerRow> rows) {
  const size_t half = static_cast<size_t>(head_dim / 2);
  cosine_.resize(rows.size() * half);
  sine_.resize(cosine_.size());
  pool_.for_each(std::ssize(rows), [&](int64_t r, int) {
    for (size_t i = 0; i < half; ++i) {
      const double angle = rows[r].position * rope.inverse_frequency[i];
      cosine_[r * half + i] = static_cast<float>(std::cos(angle) * rope.attention_factor);
      sine_[r * half + i] = static_cast<float>(std::sin(angle) * rope.attention_factor);
    }
  });
}

bool LayerOps::rotate(const Layer& layer, int64_t index) {
  const LayerShape& s = layer.shape;
  const int half = s.head_dim / 2, head_dim = s.head_dim;
  float* q = qkv_.data() + index * layer.qkv_width();
  float* k = q + padded(s.q_size());
  const float* cosine = cosine_.data() + index * half;
  const float* sine = sine_.data() + index * half;
  kernels_.rope(q, s.heads, head_dim, cosine, sine);
  kernels_.rope(k, s.kv_heads, head_dim, cosine, sine);
  const bool finite = kernels_.finite(q, layer.qkv_width());
  if (!finite) std::fill_n(q, layer.qkv_width(), 0.0f);
  const float softmax_scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  for (int h = 0; h < s.heads; ++h) {
    const int64_t at = index * s.heads + h;
    int32_t sum;
    q_scale_[at] =
        softmax_scale * kernels_.quantize_int8(q + h * head_dim, head_dim, q_.data() + at * head_dim, &sum);
    q_bias_[at] = -kernels_.weight_offset * sum;
  }
  return finite;
}

void LayerOps::append(Layer& layer, const LayerRow& row, int64_t index, int kv_head) {
  const LayerShape& s = layer.shape;
  const float* const k =
      qkv_.data() + index * layer.qkv_width() + padded(s.q_size()) + int64_t{kv_head} * s.head_dim;
  layer.kv.append(kernels_, row.pages[row.position / kPageTokens], row.position % kPageTokens, kv_head, k,
                  k + padded(s.kv_size()));
}

bool LayerOps::qkv(Layer& layer, std::span<const LayerRow> rows, const float* normed) {
  const int64_t width = layer.qkv_width();
  qkv_.resize(rows.size() * width);
  q_.resize(rows.size() * layer.shape.q_size());
  q_bias_.resize(rows.size() * layer.shape.heads);
  q_scale_.resize(rows.size() * layer.shape.heads);
  const int count = static_cast<int>(std::ssize(rows));
  products_.expect(&layer.o, count);
  products_.linear(layer.qkv, normed, count,
                   {.out = qkv_.data(), .stride = width, .width = width, .bias = bias_of(layer.qkv_bias)});
  products_.add_low_rank(layer.qkv_adapter, normed, layer.qkv.cols, count, qkv_.data(), width);
  const auto append_heads = [&](int64_t row, int first, int end) {
    for (int head = first; head < end; ++head) append(layer, rows[row], row, head);
  };
  const int64_t chunks = chunks_of(count);
  std::atomic<bool> finite{true};
  pool_.for_each(count, [&](int64_t row, int) {
    if (!rotate(layer, row)) finite.store(false, std::memory_order_relaxed);
    if (chunks == 1) append_heads(row, 0, layer.shape.kv_heads);
  });
  if (chunks == 1) return finite.load();
  // A page's tokens share cache lines, so one thread stores neighbouring ones of a head.
  pool_.for_each(chunks * layer.shape.kv_heads, [&](int64_t item, int) {
    const int64_t first = item % chunks * kRowsAtATime, end = std::min<int64_t>(first + kRowsAtATime, count);
    const int head = static_cast<int>(item / chunks);
    for (int64_t row = first; row < end; ++row) append_heads(row, head, head + 1);
  });
  return finite.load();
}

// out: of the rank's first head.
void LayerOps::attend_row(const Layer& layer, const LayerRow& row, int kv_head, float* out) {
  const LayerShape& s = layer.shape;
  const int group = s.heads / s.kv_heads, head_dim = s.head_dim;
  const int64_t kv_offset = static_cast<int64_t>(kv_head) * kPageTokens;
  for (int head = kv_head * group; head < (kv_head + 1) * group; head += 8) {
    const int64_t at = static_cast<int64_t>(row.query) * s.heads + head;
    kernels_.attend({.heads = std::min(8, (kv_head + 1) * group - head),
                     .head_dim = head_dim,
                     .q = q_.data() + at * head_dim,
                     .q_bias = q_bias_.data() + at,
                     .q_scale = q_scale_.data() + at,
                     .sinks = layer.sinks.data() + head,
                     .pages = row.pages.data(),
                     .k_cache = layer.kv.k.as<uint8_t>() + kv_offset * head_dim,
                     .v_cache = layer.kv.v.as<int16_t>() + kv_offset * head_dim,
                     .k_scale = layer.kv.k_scale.as<float>() + kv_offset,
                     .v_scale = layer.kv.v_scale.as<float>() + kv_offset,
                     .page_stride = layer.kv.page_stride(),
                     .scale_page_stride = layer.kv.scale_page_stride(),
                     .first = row.first(s.window),
                     .last = row.position,
                     .out = out + head * head_dim});
  }
}

void LayerOps::attend(const Layer& layer, std::span<const LayerRow> rows) {
  const int64_t count = std::ssize(rows);
  const int64_t width = layer.o.cols,
                group = int64_t{layer.shape.heads / layer.shape.kv_heads} * layer.shape.head_dim;
  const Range heads = rank_.share.kv_heads(width / group);
  attended_.resize(count * width);
  // Rows of one KV head follow each other, so that its pages stay in cache; the longest contexts come first.
  pool_.for_each(count * layer.shape.kv_heads, [&](int64_t item, int) {
    const int64_t row = count - 1 - item % count;
    attend_row(layer, rows[row], static_cast<int>(item / count),
               attended_.data() + row * width + heads.first * group);
  });
  rank_.gather(attended_.data(), count, width, {heads.first * group, heads.count * group});
}

void LayerOps::project(const Layer& layer, int rows, float* x) {
  const int hidden = layer.shape.hidden;
  const Range mine = rank_.share.rows(hidden);
  // Few rows of a router of one pair are the calling thread's alone, which is then bound by the memory's
  // delay.
  const bool asks = rows <= CpuTuning::kPanelTokens && layer.router.pairs() == 1;
  products_.expect(nullptr, rows);  // the router has not chosen yet
  products_.linear(layer.o, attended_.data(), rows,
                   {.out = x + mine.first,
                    .stride = hidden,
                    .width = mine.count,
                    .bias = bias_of(layer.o_bias),
                    .add = true},
                   asks ? &layer.router : nullptr);
  products_.add_low_rank(layer.o_adapter, attended_.data(), layer.shape.q_size(), rows, x, hidden);
  rank_.gather(x, rows, hidden, mine);
}

void LayerOps::route(const Layer& layer, int rows, const float* normed, const RouterSeen& seen) {
  const int experts = layer.shape.experts, top_k = layer.shape.experts_per_token;
  const int64_t width = padded(experts);
  router_logits_.resize(rows * width);
  expert_ids_.resize(rows * top_k);
  expert_weights_.resize(rows * top_k);
  products_.linear(
      layer.router, normed, rows,
      {.out = router_logits_.data(), .stride = width, .width = width, .bias = layer.router_bias.data()});
  const auto logits_of = [&](int64_t row) {
    return std::span<const float>(router_logits_.data() + row * width, experts);
  };
  for (int r = 0; seen && r < rows; ++r) seen(r, logits_of(r));
  pool_.for_each(chunks_of(rows), [&](int64_t chunk, int) {
    const int64_t end = std::min<int64_t>((chunk + 1) * kRowsAtATime, rows);
    for (int64_t r = chunk * kRowsAtATime; r < end; ++r)
      route_row(logits_of(r), top_k, expert_ids_.data() + r * top_k, expert_weights_.data() + r * top_k);
  });
}

Status LayerOps::mlp(const Layer& layer, int rows, const float* normed, float* x, const RouterSeen& seen,
                     const PackedMatrix* next) {
  if (layer.shape.experts == 0) return experts_.run_dense(layer, rows, normed, x), Status();
  route(layer, rows, normed, seen);
  return experts_.run(layer, rows, normed, {.ids = expert_ids_, .weights = expert_weights_.data()}, x, next);
}

}  // namespace moesaic::cpu
