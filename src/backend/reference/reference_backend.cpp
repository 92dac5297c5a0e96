#include "backend/reference/reference_backend.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>

#include "backend/host_kv_copier.h"
#include "backend/reference/attention.h"
#include "backend/reference/draft_head.h"
#include "backend/reference/experts.h"
#include "backend/reference/linear.h"
#include "base/error.h"
#include "mx/formats.h"

namespace moesaic {
namespace {

class ReferenceBackend final : public Backend {
 public:
  explicit ReferenceBackend(const BackendOptions& options)
      : max_rows_(options.max_rows),
        kv_(options.kv),
        moe_path_(options.moe_path),
        dense_(options.dense),
        router_trace_(options.router_trace) {}

  BackendCaps caps() const override {
    return {.name = "reference", .threads = 1, .max_rows = max_rows_, .rounding = moe_path_};
  }
  double kv_token_bytes(const ModelConfig& c) const override { return 2.0 * sizeof(float) * c.kv_size(); }
  std::vector<MemoryPart> memory(const ModelConfig& config, const ModelWeights& weights,
                                 const KvLayout& layout) override;
  Status load(const ModelConfig& config, const ModelWeights& weights, const LoadProgress& progress) override;
  Status alloc_kv(const KvLayout& layout) override;
  std::string kv_page_format() const override { return "reference f32"; }
  size_t kv_page_bytes() const override { return 2 * page_floats() * sizeof(float); }
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
  size_t page_floats() const {  // of K, or of V
    return static_cast<size_t>(layout_.page_tokens) * static_cast<size_t>(config_.kv_size());
  }
  const LayerWeights& weights(int layer) const { return weights_.layers[static_cast<size_t>(layer)]; }
  LayerAdapter adapter(int layer) const { return adapter_of(weights_, layer); }
  std::vector<float> normed(std::span<const float> x, const MatrixView& scale) const;
  // The layer's cache through the page table of the sequence.
  reference::SequenceCache cache(int layer, const Sequence& sequence);
  void append(int layer, std::span<const float> k, std::span<const float> v);
  // Remembers the first op that left a NaN or an infinity; the ops after it do nothing.
  void check(std::span<const float> x, int layer, const char* op);

  int max_rows_;
  KvFormat kv_;
  MoePath moe_path_;
  std::optional<Format> dense_;
  RouterTrace router_trace_;
  ModelConfig config_;
  ModelWeights weights_;
  std::vector<std::shared_ptr<const void>> converted_;  // storage of experts that no kernel takes as stored
  RopeTable rope_;
  KvLayout layout_;
  std::vector<reference::LayerCache> caches_;  // [layers]
  Batch batch_;
  Status fault_;
  std::vector<float> x_;         // the residual stream [rows, hidden]
  std::vector<float> q_;         // [rows, heads * head_dim]
  std::vector<float> attended_;  // [rows, heads * head_dim]
  reference::ReferenceDraftHead draft_head_{
      {config_, weights_, layout_, batch_, dense_, [this] { return !caches_.empty(); }}};
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
  weights_ = weights;  // the views stay in use: the copy keeps their storage alive
  weights_.convert_experts = nullptr;
  converted_.clear();
  for (int i = 0; i < config.layers && weights.convert_experts; ++i) {
    ASSIGN_OR_RETURN(ReadableLayer layer, layer_of(weights, i));
    weights_.layers[static_cast<size_t>(i)] = layer.weights;
    converted_.push_back(std::move(layer.storage));
  }
  RETURN_IF_ERROR(check_finite(weights_));
  rope_ = make_rope_table(config.rope, config.head_dim);
  caches_.clear();
  draft_head_.unload();
  return report(progress, config.layers + 1, config.layers + 1);
}

Status ReferenceBackend::alloc_kv(const KvLayout& layout) {
  if (config_.layers == 0) return invalid("reference backend: load a model before the KV cache");
  RETURN_IF_ERROR(validate(layout));
  layout_ = layout;
  caches_.assign(static_cast<size_t>(config_.layers), {});
  try {
    for (size_t l = 0; l < caches_.size(); ++l) {
      const auto pages = static_cast<size_t>(config_.sliding[l] ? layout.window_pages : layout.full_pages);
      const size_t elements =
          pages * static_cast<size_t>(layout.page_tokens) * static_cast<size_t>(config_.kv_size());
      caches_[l] = {std::vector<float>(elements), std::vector<float>(elements)};
    }
    if (draft_head_.loaded()) draft_head_.alloc_kv();
  } catch (const std::exception&) {  // bad_alloc or length_error
    caches_.clear();
    return error(StatusCode::kOutOfMemory, "reference backend: no memory for a KV cache of {} + {} pages",
                 layout.full_pages, layout.window_pages);
  }
  return {};
}

// K, then V.
Status ReferenceBackend::read_kv_page(int layer, int32_t page, std::span<std::byte> bytes) {
  const reference::LayerCache& cache = caches_[static_cast<size_t>(layer)];
  const size_t first = static_cast<size_t>(page) * page_floats(), half = bytes.size() / 2;
  std::memcpy(bytes.data(), cache.keys.data() + first, half);
  std::memcpy(bytes.data() + half, cache.values.data() + first, half);
  return {};
}

Status ReferenceBackend::write_kv_page(int layer, int32_t page, std::span<const std::byte> bytes) {
  reference::LayerCache& cache = caches_[static_cast<size_t>(layer)];
  const size_t first = static_cast<size_t>(page) * page_floats(), half = bytes.size() / 2;
  std::memcpy(cache.keys.data() + first, bytes.data(), half);
  std::memcpy(cache.values.data() + first, bytes.data() + half, half);
  return {};
}

Status ReferenceBackend::begin_step(const Batch& batch) {
  if (caches_.empty()) return invalid("reference backend: load a model and allocate the KV cache first");
  RETURN_IF_ERROR(validate(batch, config_, layout_, max_rows_));
  batch_ = batch;
  fault_ = {};
  if (draft_head_.loaded()) draft_head_.begin_step();
  return {};
}

void ReferenceBackend::check(std::span<const float> x, int layer, const char* op) {
  if (!fault_.ok() || reference::all_finite(x)) return;
  fault_ = layer < 0 ? error(StatusCode::kInternal, "{}: non-finite activation", op)
                     : error(StatusCode::kInternal, "layer {} {}: non-finite activation", layer, op);
}

std::vector<float> ReferenceBackend::normed(std::span<const float> x, const MatrixView& scale) const {
  const std::vector<float> s = reference::read_vector(scale);
  std::vector<float> y(x.size());
  // GGUF keeps eps as a float, config.json as decimal digits: the float is what both mean.
  const auto eps = static_cast<float>(config_.rms_eps);
  for (size_t i = 0; i < x.size(); i += s.size())
    reference::rms_norm(x.subspan(i, s.size()), s, eps, std::span(y).subspan(i, s.size()));
  return y;
}

void ReferenceBackend::embed() {
  const auto hidden = static_cast<size_t>(config_.hidden);
  x_.resize(batch_.tokens.size() * hidden);
  for (size_t t = 0; t < batch_.tokens.size(); ++t)
    read_row(weights_.embed, batch_.tokens[t], std::span(x_).subspan(t * hidden, hidden));
  check(x_, -1, "embed");
  draft_head_.tap(0, x_);
}

reference::SequenceCache ReferenceBackend::cache(int layer, const Sequence& sequence) {
  const auto l = static_cast<size_t>(layer);
  return {.cache = caches_[l],
          .pages = config_.sliding[l] ? sequence.window_pages : sequence.full_pages,
          .page_tokens = layout_.page_tokens,
          .kv_size = static_cast<size_t>(config_.kv_size())};
}

void ReferenceBackend::append(int layer, std::span<const float> k, std::span<const float> v) {
  const auto size = static_cast<std::ptrdiff_t>(config_.kv_size());
  const auto kept = [&](float x) {
    if (kv_ == KvFormat::kBf16) return mx::decode_bf16(mx::encode_bf16(x));
    return kv_ == KvFormat::kFp8 ? mx::decode_e4m3(mx::encode_e4m3(x)) : x;
  };
  for (const Sequence& s : batch_.sequences) {
    const reference::SequenceCache kv = cache(layer, s);
    for (int row = s.first_row; row < s.first_row + s.rows; ++row) {
      const auto to = static_cast<std::ptrdiff_t>(kv.offset(batch_.positions[static_cast<size_t>(row)]));
      std::transform(k.begin() + row * size, k.begin() + (row + 1) * size, kv.cache.keys.begin() + to, kept);
      std::transform(v.begin() + row * size, v.begin() + (row + 1) * size, kv.cache.values.begin() + to,
                     kept);
    }
  }
}

void ReferenceBackend::qkv(int layer) {
  if (!fault_.ok()) return;
  const LayerWeights& w = weights(layer);
  const std::vector<float> t = normed(x_, w.attn_norm);
  const size_t rows = batch_.tokens.size(), q_size = static_cast<size_t>(config_.q_size()),
               kv_size = static_cast<size_t>(config_.kv_size());
  std::vector<float> k(rows * kv_size), v(rows * kv_size);
  q_.resize(rows * q_size);
  reference::dense_linear(w.q, reference::read_vector(w.q_bias), t, q_, dense_, moe_path_);
  reference::dense_linear(w.k, reference::read_vector(w.k_bias), t, k, dense_, moe_path_);
  reference::dense_linear(w.v, reference::read_vector(w.v_bias), t, v, dense_, moe_path_);
  if (const LowRank& low = adapter(layer).qkv; !low.empty()) {
    reference::add_low_rank(low, 0, t, q_);
    reference::add_low_rank(low, config_.q_size(), t, k);
    reference::add_low_rank(low, config_.q_size() + config_.kv_size(), t, v);
  }
  for (size_t r = 0; r < rows; ++r) {
    reference::rotate(rope_, batch_.positions[r], config_.head_dim,
                      std::span(q_).subspan(r * q_size, q_size));
    reference::rotate(rope_, batch_.positions[r], config_.head_dim,
                      std::span(k).subspan(r * kv_size, kv_size));
  }
  append(layer, k, v);
  for (const auto& part : {std::span<const float>(q_), std::span<const float>(k), std::span<const float>(v)})
    check(part, layer, "qkv");
}

void ReferenceBackend::attend(int layer) {
  if (!fault_.ok()) return;
  const std::vector<float> sinks = reference::read_vector(weights(layer).sinks);
  const auto q_size = static_cast<size_t>(config_.q_size());
  attended_.resize(q_.size());
  for (const Sequence& s : batch_.sequences) {
    const reference::SequenceCache kv = cache(layer, s);
    for (size_t row = static_cast<size_t>(s.first_row); row < static_cast<size_t>(s.first_row + s.rows);
         ++row) {
      const int last = batch_.positions[row];
      const int first =
          config_.sliding[static_cast<size_t>(layer)] ? std::max(0, last - config_.window + 1) : 0;
      reference::attend_row({config_.heads, config_.kv_heads, config_.head_dim, first, last},
                            std::span(q_).subspan(row * q_size, q_size), sinks, kv,
                            std::span(attended_).subspan(row * q_size, q_size));
    }
  }
  check(attended_, layer, "attend");
}

void ReferenceBackend::project(int layer) {
  if (!fault_.ok()) return;
  std::vector<float> y(x_.size());
  reference::dense_linear(weights(layer).o, reference::read_vector(weights(layer).o_bias), attended_, y,
                          dense_, moe_path_);
  if (const LowRank& low = adapter(layer).o; !low.empty()) reference::add_low_rank(low, 0, attended_, y);
  for (size_t i = 0; i < y.size(); ++i) x_[i] += y[i];
  check(x_, layer, "project");
}

void ReferenceBackend::moe(int layer) {
  if (!fault_.ok()) return;
  const auto seen = [&](int row, std::span<const float> logits) { router_trace_(layer, row, logits); };
  reference::add_experts(config_, weights(layer), adapter(layer), normed(x_, weights(layer).mlp_norm), x_,
                         router_trace_ ? reference::RouterSeen(seen) : nullptr, moe_path_);
  check(x_, layer, "moe");
  draft_head_.tap(layer + 1, x_);
}

void ReferenceBackend::unembed(std::span<float> logits) {
  if (!fault_.ok()) return;
  MOESAIC_CHECK(logits.size() == batch_.logit_rows.size() * static_cast<size_t>(config_.vocab));
  const auto hidden = static_cast<std::ptrdiff_t>(config_.hidden);
  std::vector<float> wanted;
  for (const int32_t row : batch_.logit_rows)
    wanted.insert(wanted.end(), x_.begin() + row * hidden, x_.begin() + (row + 1) * hidden);
  reference::dense_linear(weights_.head, {}, normed(wanted, weights_.final_norm), logits, dense_, moe_path_);
  check(logits, -1, "unembed");
}

}  // namespace

Result<std::unique_ptr<Backend>> create_reference_backend(const BackendOptions& options) {
  if (options.max_rows < 1) return invalid("reference backend: max_rows is {}", options.max_rows);
  return std::unique_ptr<Backend>(std::make_unique<ReferenceBackend>(options));
}

}  // namespace moesaic
