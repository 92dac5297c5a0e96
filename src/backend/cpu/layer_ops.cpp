#include "backend/cpu/layer_ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace moesaic::cpu {
namespace {

const float* bias_of(const std::vector<float>& bias) { return bias.empty() ? nullptr : bias.data(); }

}  // namespace

Status LayerOps::make_room(int64_t columns, bool adapters) {
  ASSIGN_OR_RETURN(workspaces_, make_workspaces(pool_.threads(), columns));
  adapter_workspaces_.clear();
  if (adapters) {
    ASSIGN_OR_RETURN(adapter_workspaces_, make_workspaces(pool_.threads(), 0));
  }
  return {};
}

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

// Activations that are rounded to an MX format meet their weights as F32, which holds them exactly.
void LayerOps::convert(ActRows& act, const PackedMatrix& m, Operand operand, const float* x, int64_t stride,
                       int rows, std::span<const int32_t> slots) {
  const Rounding rounding = rounding_of(moe_path_, operand, m.format);
  const Act format = rounding.rounds() ? Act::kF32 : act_format(m.format, kernels_);
  act.assign(kernels_, pool_, format, x, stride, rows, m.cols, rounding, slots);
}

void LayerOps::linear(const PackedMatrix& m, const float* x, int rows, const Store& to) {
  convert(act_, m, Operand::kDense, x, m.cols, rows);
  for_each_tile(kernels_, pool_, workspaces_, m, act_.view(), rows, chosen_.tuning,
                [&](const float* tile, int first, int n, int64_t panel, int count) {
                  const int64_t column = panel * kPanel,
                                width = std::min<int64_t>(count * kPanel, to.width - column);
                  const float* bias = to.bias == nullptr ? nullptr : to.bias + column;
                  for (int t = 0; t < n; ++t, tile += kPair * kPanel) {
                    float* out = to.out + (first + t) * to.stride + column;
                    if (to.add && bias != nullptr) {
                      for (int64_t i = 0; i < width; ++i) out[i] += tile[i] + bias[i];
                    } else if (to.add) {
                      for (int64_t i = 0; i < width; ++i) out[i] += tile[i];
                    } else if (bias != nullptr) {
                      for (int64_t i = 0; i < width; ++i) out[i] = tile[i] + bias[i];
                    } else {
                      std::memcpy(out, tile, width * sizeof(float));
                    }
                  }
                });
}

void LayerOps::rotate_and_append(Layer& layer, const LayerRow& row, int64_t index) {
  const LayerShape& s = layer.shape;
  const int half = s.head_dim / 2, head_dim = s.head_dim;
  float* q = qkv_.data() + index * layer.qkv_width();
  float* k = q + padded(s.q_size());
  const float* v = k + padded(s.kv_size());
  const float* cosine = cosine_.data() + index * half;
  const float* sine = sine_.data() + index * half;
  kernels_.rope(q, s.heads, head_dim, cosine, sine);
  kernels_.rope(k, s.kv_heads, head_dim, cosine, sine);
  const float softmax_scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  for (int h = 0; h < s.heads; ++h) {
    const int64_t at = index * s.heads + h;
    int32_t sum;
    q_scale_[at] =
        softmax_scale * kernels_.quantize_int8(q + h * head_dim, head_dim, q_.data() + at * head_dim, &sum);
    q_bias_[at] = -kernels_.weight_offset * sum;
  }
  const int page = row.pages[row.position / kPageTokens];
  for (int h = 0; h < s.kv_heads; ++h)
    layer.kv.append(kernels_, page, row.position % kPageTokens, h, k + h * head_dim, v + h * head_dim);
}

void LayerOps::qkv(Layer& layer, std::span<const LayerRow> rows, const float* normed) {
  const int64_t width = layer.qkv_width();
  qkv_.resize(rows.size() * width);
  q_.resize(rows.size() * layer.shape.q_size());
  q_bias_.resize(rows.size() * layer.shape.heads);
  q_scale_.resize(rows.size() * layer.shape.heads);
  const int count = static_cast<int>(std::ssize(rows));
  linear(layer.qkv, normed, count,
         {.out = qkv_.data(), .stride = width, .width = width, .bias = bias_of(layer.qkv_bias)});
  add_low_rank(layer.qkv_adapter, normed, layer.qkv.cols, count, qkv_.data(), width);
  pool_.for_each(count, [&](int64_t row, int) { rotate_and_append(layer, rows[row], row); });
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
  linear(layer.o, attended_.data(), rows,
         {.out = x + mine.first,
          .stride = hidden,
          .width = mine.count,
          .bias = bias_of(layer.o_bias),
          .add = true});
  add_low_rank(layer.o_adapter, attended_.data(), layer.shape.q_size(), rows, x, hidden);
  rank_.gather(x, rows, hidden, mine);
}

void LayerOps::route(const Layer& layer, int rows, const float* normed, const RouterSeen& seen) {
  const int experts = layer.shape.experts, top_k = layer.shape.experts_per_token;
  const int64_t width = padded(experts);
  router_logits_.resize(rows * width);
  expert_ids_.resize(rows * top_k);
  expert_weights_.resize(rows * top_k);
  linear(layer.router, normed, rows,
         {.out = router_logits_.data(), .stride = width, .width = width, .bias = layer.router_bias.data()});
  for (int r = 0; r < rows; ++r) {
    const std::span<const float> logits(router_logits_.data() + r * width, experts);
    if (seen) seen(r, logits);
    route_row(logits, top_k, expert_ids_.data() + r * top_k, expert_weights_.data() + r * top_k);
  }
  build_work_list(expert_ids_, top_k, experts, work_);
}

// A dense MLP is one expert that every row goes to, in the order of the rows.
void LayerOps::take_all(int rows) {
  work_.active = {0};
  work_.offsets = {0, rows};
  work_.rows.resize(rows);
  work_.permuted_rows.clear();
}

// By the tokens of an expert, on the mean.
RunTuning LayerOps::runs() const {
  return chosen_.tuning.runs_for(std::ssize(work_.rows) / std::max<int64_t>(1, std::ssize(work_.active)));
}

// A pair is a gate panel and its up panel: 16 outputs of one expert for all its rows.
void LayerOps::gate_up_gemm(const Layer& layer) {
  const LayerShape& s = layer.shape;
  const int64_t pairs = s.intermediate / kPanel;
  const GemmTuning& tuning = s.experts > 0 ? chosen_.tuning.experts : chosen_.tuning.dense;
  constexpr double kMostLimit = 1e30;  // the kernels multiply with it
  const auto alpha = static_cast<float>(s.swiglu_alpha),
             limit = static_cast<float>(std::min(s.swiglu_limit, kMostLimit));
  const int64_t width = layer.down.cols;
  const Range mine = rank_.share.rows(width);
  hidden_.resize(work_.rows.size() * width);
  const auto body = [&](int64_t section, int64_t pair, int thread) {
    const int expert = work_.active[section];
    const int64_t bias = expert * padded(s.intermediate) + pair * kPanel;
    for (int first = work_.offsets[expert]; first < work_.offsets[expert + 1]; first += kTokenBlock) {
      const int n = std::min(kTokenBlock, work_.offsets[expert + 1] - first);
      const float* tile = run_pair(kernels_, layer.gate_up, expert * pairs + pair,
                                   rows_from(act_.view(), first), n, workspaces_[thread], tuning);
      add_to_tile(layer.gate_up_adapter, expert * pairs + pair, first, n, thread);
      float* out = hidden_.data() + first * width + mine.first + pair * kPanel;
      kernels_.swiglu_tile(tile, layer.gate_bias.data() + bias, layer.up_bias.data() + bias, n, alpha, limit,
                           out, width);
    }
  };
  for_each_pair(pool_, std::ssize(work_.active), pairs, runs(), body);
  rank_.gather(hidden_.data(), std::ssize(work_.rows), width, mine);
}

void LayerOps::down_gemm(const Layer& layer) {
  const int64_t hidden = rank_.share.rows(layer.shape.hidden).count,
                pairs = hidden / (kPair * kPanel);  // whole: a multiple of 32
  const int slots = static_cast<int>(std::ssize(work_.rows));
  convert(expert_act_, layer.down, Operand::kSwiglu, hidden_.data(), layer.down.cols, slots);
  expert_out_.resize(slots * hidden);
  const auto body = [&](int64_t section, int64_t pair, int thread) {
    const int expert = work_.active[section];
    for (int first = work_.offsets[expert]; first < work_.offsets[expert + 1]; first += kTokenBlock) {
      const int n = std::min(kTokenBlock, work_.offsets[expert + 1] - first);
      const float* tile =
          run_pair(kernels_, layer.down, expert * pairs + pair, rows_from(expert_act_.view(), first), n,
                   workspaces_[thread], chosen_.tuning.experts);
      add_to_tile(layer.down_adapter, expert * pairs + pair, first, n, thread);
      float* out = expert_out_.data() + first * hidden + pair * 2 * kPanel;
      for (int t = 0; t < n; ++t)
        std::memcpy(out + t * hidden, tile + t * 2 * kPanel, 2 * kPanel * sizeof(float));
    }
  };
  for_each_pair(pool_, std::ssize(work_.active), pairs, runs(), body);
}

void LayerOps::combine(const Layer& layer, int rows, float* x) {
  const int top_k = layer.shape.experts_per_token;
  const int64_t hidden = layer.shape.hidden;
  const Range mine = rank_.share.rows(hidden);
  pool_.for_each(rows, [&](int64_t row, int) {
    std::array<const float*, 64> y, bias;
    for (int k = 0; k < top_k; ++k) {
      y[k] = expert_out_.data() + work_.permuted_rows[row * top_k + k] * mine.count;
      bias[k] = layer.down_bias.data() + expert_ids_[row * top_k + k] * padded(mine.count);
    }
    kernels_.combine(y.data(), bias.data(), expert_weights_.data() + row * top_k, top_k, mine.count,
                     x + row * hidden + mine.first);
  });
  rank_.gather(x, rows, hidden, mine);
}

void LayerOps::mlp(const Layer& layer, int rows, const float* normed, float* x, const RouterSeen& seen) {
  const int64_t hidden = layer.shape.hidden, intermediate = layer.shape.intermediate;
  const bool dense = layer.shape.experts == 0;
  if (dense) {
    take_all(rows);
  } else {
    route(layer, rows, normed, seen);
  }
  lower_expert_rows(layer.gate_up_adapter, normed, hidden, rows, work_.permuted_rows);
  convert(act_, layer.gate_up, Operand::kExpertInput, normed, hidden, rows, work_.permuted_rows);
  gate_up_gemm(layer);
  if (dense) {
    linear(layer.down, hidden_.data(), rows,
           {.out = x, .stride = hidden, .width = hidden, .bias = bias_of(layer.down_bias), .add = true});
    add_low_rank(layer.down_adapter, hidden_.data(), intermediate, rows, x, hidden);
  } else {
    lower_expert_rows(layer.down_adapter, hidden_.data(), intermediate,
                      static_cast<int>(std::ssize(work_.rows)), {});
    down_gemm(layer);
    combine(layer, rows, x);
  }
}

}  // namespace moesaic::cpu
