// The ops of a step.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "backend/cpu/cpu_backend_impl.h"
#include "base/error.h"

namespace moesaic::cpu {

void CpuBackend::build_row_maps() {
  const int rows = batch_.rows(), half = config_.head_dim / 2;
  row_sequence_.resize(rows);
  for (size_t s = 0; s < batch_.sequences.size(); ++s) {
    const Sequence& sequence = batch_.sequences[s];
    std::fill_n(row_sequence_.begin() + sequence.first_row, sequence.rows, static_cast<int32_t>(s));
  }
  cosine_.resize(static_cast<size_t>(rows) * half);
  sine_.resize(cosine_.size());
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < half; ++i) {
      const double angle = batch_.positions[r] * rope_.inverse_frequency[i];
      cosine_[r * half + i] = static_cast<float>(std::cos(angle) * rope_.attention_factor);
      sine_[r * half + i] = static_cast<float>(std::sin(angle) * rope_.attention_factor);
    }
  }
}

Status CpuBackend::begin_step(const Batch& batch) {
  RETURN_IF_ERROR(validate(batch, config_, kv_layout_, options_.max_rows));
  batch_ = batch;
  fault_ = Status();
  build_row_maps();
  if (draft_head_.loaded()) draft_head_.begin_step();
  const size_t rows = batch.rows();
  x_.resize(rows * config_.hidden);
  normed_.resize(rows * config_.hidden);
  return {};
}

void CpuBackend::fail(int layer, const char* op) {
  if (fault_.ok())
    fault_ = error(StatusCode::kInternal, "layer {} {}: an activation is NaN or infinite", layer, op);
}

void CpuBackend::norm_rows(const std::vector<float>& weight, int layer, const char* op) {
  std::atomic<bool> finite{true};
  pool_.for_each(batch_.rows(), [&](int64_t r, int) {
    const int64_t at = r * config_.hidden;
    if (!kernels_.rmsnorm(x_.data() + at, weight.data(), config_.hidden, static_cast<float>(config_.rms_eps),
                          normed_.data() + at)) {
      finite.store(false, std::memory_order_relaxed);
    }
  });
  if (!finite.load()) fail(layer, op);
}

// What is rounded to an MX format meets its weights as F32, which hold it exactly.
void CpuBackend::convert(ActRows& act, const PackedMatrix& m, Operand operand, const float* x, int64_t stride,
                         int rows, std::span<const int32_t> slots) {
  const Rounding rounding = rounding_of(options_.moe_path, operand, mx_format(m.pack));
  const Act format = rounding.rounds() ? Act::kF32 : act_format(m.pack, kernels_);
  act.assign(kernels_, pool_, format, x, stride, rows, m.cols, rounding, slots);
}

template <typename Epilogue>
void CpuBackend::multiply(const PackedMatrix& m, const float* x, int64_t stride, int rows,
                          Epilogue&& epilogue) {
  convert(act_, m, Operand::kDense, x, stride, rows);
  for_each_tile(kernels_, pool_, workspaces_, m, act_.view(), rows, chosen_.tuning, epilogue);
}

void CpuBackend::embed() {
  const Timer timer(profile_[kEmbed],
                    static_cast<double>(batch_.rows()) * row_bytes(embed_.format, embed_.cols), 0);
  pool_.for_each(batch_.rows(), [&](int64_t r, int) {
    read_row(embed_, batch_.tokens[r], std::span(x_).subspan(r * config_.hidden, config_.hidden));
  });
  draft_head_.tap(0, x_);
}

void CpuBackend::rotate_and_append(Layer& layer, bool sliding, int64_t row) {
  const int half = config_.head_dim / 2, head_dim = config_.head_dim;
  const int64_t width = std::ssize(layer.qkv_bias);
  float* q = qkv_.data() + row * width;
  float* k = q + padded(config_.q_size());
  const float* v = k + padded(config_.kv_size());
  const float* cosine = cosine_.data() + row * half;
  const float* sine = sine_.data() + row * half;
  kernels_.rope(q, config_.heads, head_dim, cosine, sine);
  kernels_.rope(k, config_.kv_heads, head_dim, cosine, sine);
  const float softmax_scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  for (int h = 0; h < config_.heads; ++h) {
    const int64_t at = row * config_.heads + h;
    int32_t sum;
    q_scale_[at] =
        softmax_scale * kernels_.quantize_int8(q + h * head_dim, head_dim, q_.data() + at * head_dim, &sum);
    q_bias_[at] = -kernels_.weight_offset * sum;
  }
  const Sequence& sequence = batch_.sequences[row_sequence_[row]];
  const int position = batch_.positions[row];
  const int page = (sliding ? sequence.window_pages : sequence.full_pages)[position / kPageTokens];
  for (int h = 0; h < config_.kv_heads; ++h) {
    layer.kv.append(kernels_, page, position % kPageTokens, h, k + h * head_dim, v + h * head_dim);
  }
}

void CpuBackend::qkv(int index) {
  Layer& layer = layers_[index];
  const int rows = batch_.rows();
  const int64_t width = std::ssize(layer.qkv_bias);
  const Timer timer(profile_[kQkv], layer.qkv.bytes() + layer.qkv_adapter.bytes(),
                    2.0 * rows * layer.qkv.panels * kPanel * layer.qkv.cols);
  norm_rows(layer.attn_norm, index, "qkv");
  qkv_.resize(rows * width);
  q_.resize(static_cast<size_t>(rows) * config_.q_size());
  q_bias_.resize(static_cast<size_t>(rows) * config_.heads);
  q_scale_.resize(static_cast<size_t>(rows) * config_.heads);
  multiply(layer.qkv, normed_.data(), config_.hidden, rows,
           [&](const float* tile, int first, int n, int64_t panel, int count) {
             for (int t = 0; t < n; ++t) {
               float* out = qkv_.data() + (first + t) * width + panel * kPanel;
               const float* bias = layer.qkv_bias.data() + panel * kPanel;
               for (int i = 0; i < count * kPanel; ++i) out[i] = tile[t * 2 * kPanel + i] + bias[i];
             }
           });
  add_low_rank(layer.qkv_adapter, normed_.data(), config_.hidden, rows, qkv_.data(), width);
  pool_.for_each(rows, [&](int64_t row, int) { rotate_and_append(layer, config_.sliding[index], row); });
}

void CpuBackend::attend_row(const Layer& layer, bool sliding, int64_t row, int kv_head) {
  const Sequence& sequence = batch_.sequences[row_sequence_[row]];
  const int group = config_.heads / config_.kv_heads, head_dim = config_.head_dim,
            last = batch_.positions[row];
  const int64_t kv_offset = static_cast<int64_t>(kv_head) * kPageTokens;
  for (int head = kv_head * group; head < (kv_head + 1) * group; head += 8) {
    const int64_t at = row * config_.heads + head;
    kernels_.attend({.heads = std::min(8, (kv_head + 1) * group - head),
                     .head_dim = head_dim,
                     .q = q_.data() + at * head_dim,
                     .q_bias = q_bias_.data() + at,
                     .q_scale = q_scale_.data() + at,
                     .sinks = layer.sinks.data() + head,
                     .pages = (sliding ? sequence.window_pages : sequence.full_pages).data(),
                     .k_cache = layer.kv.k.as<uint8_t>() + kv_offset * head_dim,
                     .v_cache = layer.kv.v.as<int16_t>() + kv_offset * head_dim,
                     .k_scale = layer.kv.k_scale.as<float>() + kv_offset,
                     .v_scale = layer.kv.v_scale.as<float>() + kv_offset,
                     .page_stride = layer.kv.page_stride(),
                     .scale_page_stride = layer.kv.scale_page_stride(),
                     .first = sliding ? std::max(0, last - config_.window + 1) : 0,
                     .last = last,
                     .out = attended_.data() + at * head_dim});
  }
}

void CpuBackend::attend(int index) {
  const Layer& layer = layers_[index];
  const int rows = batch_.rows();
  const bool sliding = config_.sliding[index];
  double keys = 0, cached = 0;
  for (const int position : batch_.positions)
    keys += sliding ? std::min(position + 1, config_.window) : position + 1;
  for (const Sequence& s : batch_.sequences)
    cached += sliding ? std::min(s.context, config_.window + s.rows - 1) : s.context;
  const Timer timer(profile_[kAttend], cached * 3 * config_.kv_size(), keys * 4 * config_.q_size());
  attended_.resize(static_cast<size_t>(rows) * config_.q_size());
  // Rows of one KV head follow each other, so that its pages stay in cache; the longest contexts come first.
  pool_.for_each(static_cast<int64_t>(rows) * config_.kv_heads, [&](int64_t item, int) {
    attend_row(layer, sliding, rows - 1 - item % rows, static_cast<int>(item / rows));
  });
}

void CpuBackend::project(int index) {
  const Layer& layer = layers_[index];
  const int rows = batch_.rows();
  const Timer timer(profile_[kProject], layer.o.bytes() + layer.o_adapter.bytes(),
                    2.0 * rows * config_.hidden * config_.q_size());
  multiply(layer.o, attended_.data(), config_.q_size(), rows,
           [&](const float* tile, int first, int n, int64_t panel, int count) {
             for (int t = 0; t < n; ++t) {
               float* out = x_.data() + (first + t) * config_.hidden + panel * kPanel;
               const float* bias = layer.o_bias.data() + panel * kPanel;
               for (int i = 0; i < count * kPanel; ++i) out[i] += tile[t * 2 * kPanel + i] + bias[i];
             }
           });
  add_low_rank(layer.o_adapter, attended_.data(), config_.q_size(), rows, x_.data(), config_.hidden);
}

void CpuBackend::route(int index) {
  const Layer& layer = layers_[index];
  const int rows = batch_.rows(), top_k = config_.experts_per_token;
  const int64_t width = padded(config_.experts);
  router_logits_.resize(rows * width);
  expert_ids_.resize(rows * top_k);
  expert_weights_.resize(rows * top_k);
  multiply(layer.router, normed_.data(), config_.hidden, rows,
           [&](const float* tile, int first, int n, int64_t panel, int count) {
             for (int t = 0; t < n; ++t) {
               float* out = router_logits_.data() + (first + t) * width + panel * kPanel;
               for (int i = 0; i < count * kPanel; ++i)
                 out[i] = tile[t * 2 * kPanel + i] + layer.router_bias[panel * kPanel + i];
             }
           });
  for (int r = 0; r < rows; ++r) {
    const std::span<const float> logits(router_logits_.data() + r * width, config_.experts);
    if (options_.router_trace) options_.router_trace(index, r, logits);
    route_row(logits, top_k, expert_ids_.data() + r * top_k, expert_weights_.data() + r * top_k);
  }
  build_work_list(expert_ids_, top_k, config_.experts, work_);
}

// By the tokens of an expert, on the mean.
RunTuning CpuBackend::runs() const {
  return chosen_.tuning.runs_for(std::ssize(work_.rows) / std::max<int64_t>(1, std::ssize(work_.active)));
}

// A pair is a gate panel and its up panel: 16 outputs of one expert for all its rows.
void CpuBackend::gate_up_gemm(const Layer& layer) {
  const int64_t pairs = config_.intermediate / kPanel;
  const auto alpha = static_cast<float>(config_.swiglu_alpha),
             limit = static_cast<float>(config_.swiglu_limit);
  hidden_.resize(work_.rows.size() * config_.intermediate);
  const auto body = [&](int64_t section, int64_t pair, int thread) {
    const int expert = work_.active[section];
    const int64_t bias = expert * padded(config_.intermediate) + pair * kPanel;
    for (int first = work_.offsets[expert]; first < work_.offsets[expert + 1]; first += kTokenBlock) {
      const int n = std::min(kTokenBlock, work_.offsets[expert + 1] - first);
      const float* tile =
          run_pair(kernels_, layer.gate_up, expert * pairs + pair, rows_from(act_.view(), first), n,
                   workspaces_[thread], chosen_.tuning.experts);
      add_to_tile(layer.gate_up_adapter, expert * pairs + pair, first, n, thread);
      float* out = hidden_.data() + static_cast<int64_t>(first) * config_.intermediate + pair * kPanel;
      kernels_.swiglu_tile(tile, layer.gate_bias.data() + bias, layer.up_bias.data() + bias, n, alpha, limit,
                           out, config_.intermediate);
    }
  };
  for_each_pair(pool_, std::ssize(work_.active), pairs, runs(), body);
}

void CpuBackend::down_gemm(const Layer& layer) {
  const int64_t pairs = config_.hidden / (kPair * kPanel);  // whole: hidden is a multiple of 32
  const int slots = static_cast<int>(std::ssize(work_.rows));
  convert(expert_act_, layer.down, Operand::kSwiglu, hidden_.data(), config_.intermediate, slots);
  expert_out_.resize(static_cast<size_t>(slots) * config_.hidden);
  const auto body = [&](int64_t section, int64_t pair, int thread) {
    const int expert = work_.active[section];
    for (int first = work_.offsets[expert]; first < work_.offsets[expert + 1]; first += kTokenBlock) {
      const int n = std::min(kTokenBlock, work_.offsets[expert + 1] - first);
      const float* tile =
          run_pair(kernels_, layer.down, expert * pairs + pair, rows_from(expert_act_.view(), first), n,
                   workspaces_[thread], chosen_.tuning.experts);
      add_to_tile(layer.down_adapter, expert * pairs + pair, first, n, thread);
      float* out = expert_out_.data() + static_cast<int64_t>(first) * config_.hidden + pair * 2 * kPanel;
      for (int t = 0; t < n; ++t)
        std::memcpy(out + static_cast<int64_t>(t) * config_.hidden, tile + t * 2 * kPanel,
                    2 * kPanel * sizeof(float));
    }
  };
  for_each_pair(pool_, std::ssize(work_.active), pairs, runs(), body);
}

void CpuBackend::combine(const Layer& layer) {
  const int top_k = config_.experts_per_token;
  pool_.for_each(batch_.rows(), [&](int64_t row, int) {
    std::array<const float*, 64> y, bias;
    for (int k = 0; k < top_k; ++k) {
      y[k] = expert_out_.data() + static_cast<int64_t>(work_.permuted_rows[row * top_k + k]) * config_.hidden;
      bias[k] = layer.down_bias.data() + expert_ids_[row * top_k + k] * padded(config_.hidden);
    }
    kernels_.combine(y.data(), bias.data(), expert_weights_.data() + row * top_k, top_k, config_.hidden,
                     x_.data() + row * config_.hidden);
  });
}

void CpuBackend::moe(int index) {
  const Layer& layer = layers_[index];
  const int rows = batch_.rows();
  OpProfile& op = profile_[kMoe];
  const Timer timer(op, layer.router.bytes(),
                    6.0 * rows * config_.experts_per_token * config_.hidden * config_.intermediate);
  norm_rows(layer.mlp_norm, index, "moe");
  if (!fault_.ok()) return;  // the router's choice among NaNs would not be one
  route(index);
  op.bytes += (layer.gate_up.bytes() + layer.gate_up_adapter.bytes() + layer.down.bytes() +
               layer.down_adapter.bytes()) *
              static_cast<double>(work_.active.size()) / config_.experts;
  lower_expert_rows(layer.gate_up_adapter, normed_.data(), config_.hidden, rows, work_.permuted_rows);
  convert(act_, layer.gate_up, Operand::kExpertInput, normed_.data(), config_.hidden, rows,
          work_.permuted_rows);
  gate_up_gemm(layer);
  lower_expert_rows(layer.down_adapter, hidden_.data(), config_.intermediate,
                    static_cast<int>(std::ssize(work_.rows)), {});
  down_gemm(layer);
  combine(layer);
  draft_head_.tap(index + 1, x_);
}

void CpuBackend::unembed(std::span<float> logits) {
  const int rows = static_cast<int>(std::ssize(batch_.logit_rows));
  const Timer timer(profile_[kUnembed], rows > 0 ? head_.bytes() : 0,
                    2.0 * rows * config_.hidden * config_.vocab);
  bool finite = true;
  for (int i = 0; i < rows; ++i) {
    const int64_t from = static_cast<int64_t>(batch_.logit_rows[i]) * config_.hidden;
    finite &= kernels_.rmsnorm(x_.data() + from, final_norm_.data(), config_.hidden,
                               static_cast<float>(config_.rms_eps),
                               normed_.data() + static_cast<int64_t>(i) * config_.hidden);
  }
  if (!finite) return fail(config_.layers, "unembed");
  if (rows == 0) return;
  multiply(head_, normed_.data(), config_.hidden, rows,
           [&](const float* tile, int first, int n, int64_t panel, int count) {
             const int64_t column = panel * kPanel,
                           width = std::min<int64_t>(count * kPanel, config_.vocab - column);
             for (int t = 0; t < n; ++t) {
               std::memcpy(logits.data() + static_cast<int64_t>(first + t) * config_.vocab + column,
                           tile + t * 2 * kPanel, width * sizeof(float));
             }
           });
}

}  // namespace moesaic::cpu
