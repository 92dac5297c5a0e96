#include "backend/reference/reference_backend.h"

#include <algorithm>
#include <cstring>

#include "backend/host_kv_copier.h"
#include "backend/reference/draft_head.h"
#include "backend/reference/layer_ops.h"
#include "base/error.h"
#include "core/choose_token.h"

namespace moesaic {
namespace {

class ReferenceBackend final : public Backend {
 public:
  explicit ReferenceBackend(const BackendOptions& options)
      : max_rows_(options.max_rows),
        precision_{options.dense, options.moe_path, options.kv},
        router_trace_(options.router_trace),
        rank_(options.rank) {}

  BackendCaps caps() const override {
    return {.name = "reference", .threads = 1, .max_rows = max_rows_, .rounding = precision_.moe_path};
  }
  double kv_token_bytes(const ModelConfig& c) const override {
    return 2.0 * sizeof(float) * static_cast<double>(rank_.share.kv_heads(c.kv_heads).count * c.head_dim);
  }
  std::vector<MemoryPart> memory(const ModelConfig& config, const ModelWeights& weights,
                                 const KvLayout& layout) override;
  Status load(const ModelConfig& config, const ModelWeights& weights, const LoadProgress& progress) override;
  Status alloc_kv(const KvLayout& layout) override;
  // Says to what the numbers were rounded; in memory they are F32.
  std::string kv_page_format() const override {
    if (precision_.kv == KvFormat::kBf16) return "reference bf16";
    return precision_.kv == KvFormat::kFp8 ? "reference fp8" : "reference f32";
  }
  size_t kv_page_bytes() const override {
    return static_cast<size_t>(layout_.page_tokens * kv_token_bytes(config_));
  }
  Status read_kv_page(int layer, int32_t page, std::span<std::byte> bytes) override;
  Status write_kv_page(int layer, int32_t page, std::span<const std::byte> bytes) override;
  std::unique_ptr<KvCopier> kv_copier() override { return std::make_unique<HostKvCopier>(*this); }
  Status begin_step(const Batch& batch) override;
  void embed() override;
  void qkv(int layer) override;
  void attend(int layer) override;
  void project(int layer) override;
  void moe(int layer) override;
  void unembed(std::span<float> logits) override;
  Status end_step() override { return fault_; }
  DraftHead* draft_head() override { return &draft_head_; }

 private:
  Status alloc_caches();
  reference::Layer& layer(int index) { return layers_[static_cast<size_t>(index)]; }
  bool has_cache() const { return !layers_.empty() && layers_[0].cache.page_tokens > 0; }
  std::span<const LayerRow> rows_of(int index) const {
    return config_.sliding[static_cast<size_t>(index)] ? window_rows_ : full_rows_;
  }
  // Remembers the first op that left a NaN or an infinity; the ops after it do nothing.
  void check(std::span<const float> x, int layer, const char* op);

  int max_rows_;
  reference::Precision precision_;
  RouterTrace router_trace_;
  RankPlace rank_;
  ModelConfig config_;
  ModelWeights weights_;
  std::vector<std::shared_ptr<const void>> converted_;  // storage of experts that no kernel takes as stored
  std::vector<reference::Layer> layers_;
  KvLayout layout_;
  Batch batch_;
  std::vector<LayerRow> full_rows_, window_rows_;
  Status fault_;
  std::vector<float> x_;         // the residual stream [rows, hidden]
  std::vector<float> q_;         // [rows, heads * head_dim]
  std::vector<float> attended_;  // [rows, heads * head_dim]
  reference::ReferenceDraftHead draft_head_{
      {config_, weights_, layout_, batch_, precision_.dense, [this] { return has_cache(); }}};
};

std::vector<MemoryPart> ReferenceBackend::memory(const ModelConfig& config, const ModelWeights& weights,
                                                 const KvLayout& layout) {
  std::vector<MemoryPart> parts = Backend::memory(config, weights, layout);
  if (draft_head_.loaded()) std::ranges::copy(draft_head_.memory(layout), std::back_inserter(parts));
  return parts;
}

Status ReferenceBackend::load(const ModelConfig& config, const ModelWeights& weights,
                              const LoadProgress& progress) {
  RETURN_IF_ERROR(validate(weights, config));
  config_ = config;
  weights_ = cut(weights, config, rank_.share);  // the views stay in use: the copy keeps their storage alive
  converted_.clear();
  for (int i = 0; i < config.layers && weights_.convert_experts; ++i) {
    ASSIGN_OR_RETURN(ReadableLayer layer, layer_of(weights_, i));
    weights_.layers[static_cast<size_t>(i)] = layer.weights;
    converted_.push_back(std::move(layer.storage));
  }
  weights_.convert_experts = nullptr;
  RETURN_IF_ERROR(check_finite(weights_));
  layers_.clear();
  for (int i = 0; i < config.layers; ++i)
    layers_.push_back({.shape = cut(layer_shape(config, i), rank_.share),
                       .weights = weights_.layers[static_cast<size_t>(i)],
                       .adapter = adapter_of(weights_, i),
                       .rope = make_rope_table(config.rope, config.head_dim),
                       .rank = rank_});
  draft_head_.unload();
  return report(progress, config.layers + 1, config.layers + 1);
}

Status ReferenceBackend::alloc_kv(const KvLayout& layout) {
  if (config_.layers == 0) return invalid("reference backend: load a model before the KV cache");
  RETURN_IF_ERROR(validate(layout));
  layout_ = layout;
  Status allocated = alloc_caches();
  if (!allocated.ok())
    for (reference::Layer& layer : layers_) layer.cache = {};
  return allocated;
}

Status ReferenceBackend::alloc_caches() {
  for (int i = 0; i < config_.layers; ++i) {
    const bool sliding = config_.sliding[static_cast<size_t>(i)];
    ASSIGN_OR_RETURN(layer(i).cache,
                     reference::make_cache(layer(i).shape, layout_.page_tokens,
                                           sliding ? layout_.window_pages : layout_.full_pages));
  }
  return draft_head_.loaded() ? draft_head_.alloc_kv() : Status();
}

// K, then V.
Status ReferenceBackend::read_kv_page(int layer, int32_t page, std::span<std::byte> bytes) {
  const reference::LayerCache& cache = this->layer(layer).cache;
  const size_t first = static_cast<size_t>(page) * cache.page_floats(), half = bytes.size() / 2;
  std::memcpy(bytes.data(), cache.keys().data() + first, half);
  std::memcpy(bytes.data() + half, cache.values().data() + first, half);
  return {};
}

Status ReferenceBackend::write_kv_page(int layer, int32_t page, std::span<const std::byte> bytes) {
  const reference::LayerCache& cache = this->layer(layer).cache;
  const size_t first = static_cast<size_t>(page) * cache.page_floats(), half = bytes.size() / 2;
  std::memcpy(cache.keys().data() + first, bytes.data(), half);
  std::memcpy(cache.values().data() + first, bytes.data() + half, half);
  return {};
}

Status ReferenceBackend::begin_step(const Batch& batch) {
  if (!has_cache()) return invalid("reference backend: load a model and allocate the KV cache first");
  RETURN_IF_ERROR(validate(batch, config_, layout_, max_rows_));
  batch_ = batch;
  full_rows_ = layer_rows(batch_, false), window_rows_ = layer_rows(batch_, true);
  fault_ = {};
  if (draft_head_.loaded()) draft_head_.begin_step();
  return {};
}

void ReferenceBackend::check(std::span<const float> x, int layer, const char* op) {
  if (!fault_.ok() || all_finite(x)) return;
  fault_ = layer < 0 ? error(StatusCode::kInternal, "{}: non-finite activation", op)
                     : error(StatusCode::kInternal, "layer {} {}: non-finite activation", layer, op);
  if (!rank_.alone()) rank_.exchange->fail(fault_);  // the others would wait: they may not have seen it
}

void ReferenceBackend::embed() {
  const auto hidden = static_cast<size_t>(config_.hidden);
  x_.resize(batch_.tokens.size() * hidden);
  for (size_t t = 0; t < batch_.tokens.size(); ++t)
    read_row(weights_.embed, batch_.tokens[t], std::span(x_).subspan(t * hidden, hidden));
  check(x_, -1, "embed");
  draft_head_.tap(0, x_);
}

void ReferenceBackend::qkv(int index) {
  if (!fault_.ok()) return;
  reference::Layer& layer = this->layer(index);
  const std::vector<float> norm = reference::read_vector(layer.weights.attn_norm);
  reference::Qkv out =
      reference::qkv(layer, rows_of(index), reference::normed(x_, norm, layer.shape.rms_eps), precision_);
  for (const std::vector<float>* part : {&out.q, &out.k, &out.v}) check(*part, index, "qkv");
  q_ = std::move(out.q);
}

void ReferenceBackend::attend(int index) {
  if (!fault_.ok()) return;
  attended_ = reference::attend(layer(index), rows_of(index), q_);
  check(attended_, index, "attend");
}

void ReferenceBackend::project(int index) {
  if (!fault_.ok()) return;
  reference::project(layer(index), attended_, x_, precision_);
  check(x_, index, "project");
}

void ReferenceBackend::moe(int index) {
  if (!fault_.ok()) return;
  const reference::Layer& layer = this->layer(index);
  const std::vector<float> norm = reference::read_vector(layer.weights.mlp_norm);
  const auto seen = [&](int row, std::span<const float> logits) { router_trace_(index, row, logits); };
  reference::add_mlp(layer.shape, layer.weights, layer.adapter,
                     reference::normed(x_, norm, layer.shape.rms_eps), x_, precision_,
                     router_trace_ ? reference::RouterSeen(seen) : nullptr, rank_);
  check(x_, index, "moe");
  draft_head_.tap(index + 1, x_);
}

void ReferenceBackend::unembed(std::span<float> logits) {
  if (!fault_.ok()) return;
  const auto hidden = static_cast<std::ptrdiff_t>(config_.hidden);
  std::vector<float> wanted;
  for (const int32_t row : batch_.logit_rows)
    wanted.insert(wanted.end(), x_.begin() + row * hidden, x_.begin() + (row + 1) * hidden);
  const std::vector<float> norm = reference::read_vector(weights_.final_norm);
  std::vector<float> made(batch_.logit_rows.size() * static_cast<size_t>(weights_.head.rows));
  reference::dense_linear(weights_.head, {}, reference::normed(wanted, norm, config_.rms_eps), made,
                          precision_);
  check(made, -1, "unembed");
  made = reference::gather(rank_, std::move(made), rank_.share.rows(config_.vocab), config_.vocab);
  if (rank_.share.rank > 0) return;
  MOESAIC_CHECK(logits.size() == made.size());
  std::ranges::copy(made, logits.begin());
}

}  // namespace

Result<std::unique_ptr<Backend>> create_reference_backend(const BackendOptions& options) {
  if (options.max_rows < 1) return invalid("reference backend: max_rows is {}", options.max_rows);
  return std::unique_ptr<Backend>(std::make_unique<ReferenceBackend>(options));
}

}  // namespace moesaic
