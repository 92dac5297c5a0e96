// A step: what surrounds the ops of its layers.
#include <algorithm>
#include <atomic>

#include "backend/cpu/cpu_backend_impl.h"
#include "base/error.h"

namespace moesaic::cpu {

Status CpuBackend::begin_step(const Batch& batch) {
  RETURN_IF_ERROR(validate(batch, config_, kv_layout_, options_.max_rows));
  batch_ = batch;
  fault_ = Status();
  spans_.clear();
  full_rows_ = layer_rows(batch_, false), window_rows_ = layer_rows(batch_, true);
  ops_.turn(rope_, config_.head_dim, full_rows_);
  if (draft_head_.loaded()) draft_head_.begin_step();
  const size_t rows = batch.rows();
  x_.resize(rows * config_.hidden);
  normed_.resize(rows * config_.hidden);
  return {};
}

void CpuBackend::fail(int layer, const char* op) {
  if (!fault_.ok()) return;
  fault_ = error(StatusCode::kInternal, "layer {} {}: an activation is NaN or infinite", layer, op);
  if (!options_.rank.alone()) options_.rank.exchange->fail(fault_);  // the others may not have seen it
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

void CpuBackend::embed() {
  const Timer timer(*this, kEmbed, -1,
                    static_cast<double>(batch_.rows()) * row_bytes(embed_.view.format, embed_.view.cols), 0);
  pool_.for_each(batch_.rows(), [&](int64_t r, int) {
    read_row(embed_.view, batch_.tokens[r], std::span(x_).subspan(r * config_.hidden, config_.hidden));
  });
  draft_head_.tap(0, x_);
}

void CpuBackend::qkv(int index) {
  Layer& layer = layers_[index];
  const Timer timer(*this, kQkv, index, layer.qkv.bytes() + layer.qkv_adapter.bytes(),
                    2.0 * batch_.rows() * layer.qkv.panels * kPanel * layer.qkv.cols);
  norm_rows(layer.attn_norm, index, "qkv");
  if (!ops_.qkv(layer, rows_of(index), normed_.data())) fail(index, "qkv");
}

void CpuBackend::attend(int index) {
  const LayerShape& shape = layers_[index].shape;
  const auto reached = [&](int tokens, int window) {
    return shape.window > 0 ? std::min(tokens, window) : tokens;
  };
  double keys = 0, cached = 0;
  for (const int position : batch_.positions) keys += reached(position + 1, shape.window);
  for (const Sequence& s : batch_.sequences) cached += reached(s.context, shape.window + s.rows - 1);
  const Timer timer(*this, kAttend, index, cached * 3 * shape.kv_size(), keys * 4 * shape.q_size());
  ops_.attend(layers_[index], rows_of(index));
}

void CpuBackend::project(int index) {
  const Layer& layer = layers_[index];
  const Timer timer(*this, kProject, index, layer.o.bytes() + layer.o_adapter.bytes(),
                    2.0 * batch_.rows() * config_.hidden * layer.shape.q_size());
  ops_.project(layer, batch_.rows(), x_.data());
}

void CpuBackend::moe(int index) {
  const Layer& layer = layers_[index];
  const int rows = batch_.rows();
  Timer timer(*this, kMoe, index, layer.router.bytes(),
              6.0 * rows * config_.experts_per_token * config_.hidden * layer.shape.intermediate);
  norm_rows(layer.mlp_norm, index, "moe");
  if (!fault_.ok()) return;  // the router's choice among NaNs would not be one
  const auto seen = [&](int row, std::span<const float> logits) {
    options_.router_trace(index, row, logits);
  };
  fault_ = ops_.mlp(layer, rows, normed_.data(), x_.data(),
                    options_.router_trace ? LayerOps::RouterSeen(seen) : nullptr,
                    index + 1 < config_.layers ? &layers_[index + 1].qkv : &head_);
  timer.add_bytes(layer.experts_bytes() * static_cast<double>(ops_.active_experts()) /
                  static_cast<double>(layer.places()));
  draft_head_.tap(index + 1, x_);
}

void CpuBackend::unembed(std::span<float> logits) {
  const int rows = static_cast<int>(std::ssize(batch_.logit_rows));
  const Timer timer(*this, kUnembed, -1, rows > 0 ? head_.bytes() : 0,
                    2.0 * rows * config_.hidden * options_.rank.share.rows(config_.vocab).count);
  bool finite = true;
  for (int i = 0; i < rows; ++i) {
    const int64_t from = static_cast<int64_t>(batch_.logit_rows[i]) * config_.hidden;
    finite &= kernels_.rmsnorm(x_.data() + from, final_norm_.data(), config_.hidden,
                               static_cast<float>(config_.rms_eps),
                               normed_.data() + static_cast<int64_t>(i) * config_.hidden);
  }
  if (!finite) return fail(config_.layers, "unembed");
  if (rows == 0) return;
  const RankPlace& rank = options_.rank;
  const Range mine = rank.share.rows(config_.vocab);
  const bool gives = rank.share.rank == 0;
  if (!gives) logits_.resize(rows * mine.count);
  float* const made = gives ? logits.data() : logits_.data();
  const int64_t stride = gives ? config_.vocab : mine.count;
  ops_.linear(head_, normed_.data(), rows, {.out = made, .stride = stride, .width = mine.count});
  if (!rank.alone())
    rank.exchange->gather(rank.share.rank, {made, stride, rows, mine}, gives ? made : nullptr, config_.vocab);
}

}  // namespace moesaic::cpu
