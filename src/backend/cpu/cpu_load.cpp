// Checkpoint to packed weights, and the KV cache.
#include <algorithm>
#include <cstring>
#include <iterator>

#include "backend/cpu/cpu_backend_impl.h"
#include "base/error.h"
#include "core/read_ahead.h"
#include "core/tensor_name.h"

namespace moesaic::cpu {

// Packed weights take what they take in the file, but for those that --dense converts.
std::vector<MemoryPart> CpuBackend::memory(const ModelConfig& config, const ModelWeights& whole,
                                           const KvLayout& layout) {
  const ModelWeights weights = cut(whole, config, options_.rank.share);
  const StoredBytes stored = stored_bytes(weights);
  const auto share = [&](Format from) {
    return bits_per_element(made_of(from, options_.dense)) / bits_per_element(from);
  };
  std::vector<MemoryPart> parts = {{kExpertsPart, stored.experts * options_.held_experts},
                                   {kProjectionsPart, stored.projections * share(weights.layers[0].q.format)},
                                   {kHeadPart, stored.head * share(weights.head.format)},
                                   {kEmbeddingPart, stored.embedding},
                                   {kVectorsPart, stored.rest},
                                   {kCachePart, kv_bytes(layout, config, *this), MemoryKind::kCache}};
  if (stored.adapters > 0) parts.push_back({kAdaptersPart, stored.adapters});
  if (draft_head_.loaded()) std::ranges::copy(draft_head_.memory(layout), std::back_inserter(parts));
  return parts;
}

Status CpuBackend::load(const ModelConfig& config, const ModelWeights& whole, const LoadProgress& progress) {
  RETURN_IF_ERROR(validate(whole, config));
  const RankShare& share = options_.rank.share;
  const ModelWeights weights = cut(whole, config, share);
  if (config.head_dim % 16 != 0)
    return error(StatusCode::kUnsupported, "cpu: head_dim {} is not a multiple of 16; use --device reference",
                 config.head_dim);
  config_ = config;
  rope_ = make_rope_table(config.rope, config.head_dim);
  layers_ = std::vector<Layer>(config.layers);
  draft_head_.unload();
  // The two large tables first: each is dropped from the mapping as soon as it is packed, so that the peak is
  // the packed model and one layer.
  const auto release = [&](int layer) {
    if (weights.release) weights.release(layer);
  };
  const ExpertSource source = source_of(weights, options_.held_experts);
  std::optional<ReadAhead> read_ahead;
  if (source.share >= 1) read_ahead.emplace(weights);
  ASSIGN_OR_RETURN(embed_, copy_table(weights.embed, tensor_name(kNoLayer, "embed"), pool_));
  release(-1);
  const LayerLoader loader(
      kernels_, pool_, [&](const MatrixView&) { return options_.dense; }, source);
  ASSIGN_OR_RETURN(head_, loader.pack({&weights.head}, "lm_head"));
  ASSIGN_OR_RETURN(final_norm_, read_vector(weights.final_norm, "final norm"));
  release(-1);
  RETURN_IF_ERROR(report(progress, 1, config.layers + 1));
  for (int i = 0; i < config.layers; ++i) {
    if (read_ahead) read_ahead->packing(i);
    ASSIGN_OR_RETURN(const ReadableLayer layer, layer_of(weights, i));
    RETURN_IF_ERROR(loader.load(cut(layer_shape(config, i), share), layer.weights, adapter_of(weights, i),
                                fmt::format("layer {}", i), layers_[i]));
    release(i);
    RETURN_IF_ERROR(report(progress, i + 2, config.layers + 1));
  }
  const int64_t max_cols = std::max({config.hidden, config.intermediate, config.q_size()});
  RETURN_IF_ERROR(ops_.make_room(max_cols, !weights.adapters.empty()));
  file_reads_ = {};
  for (const Layer& layer : layers_) file_reads_.add(layer);
  chosen_ = choose_tuning();
  reset_profile();
  return {};
}

Status CpuBackend::alloc_kv(const KvLayout& layout) {
  if (layout.page_tokens != kPageTokens)
    return invalid("cpu: pages hold {} tokens, not {}", kPageTokens, layout.page_tokens);
  kv_layout_ = layout;
  for (int i = 0; i < config_.layers; ++i) {
    const int pages = config_.sliding[i] ? layout.window_pages : layout.full_pages;
    layers_[i].kv = {};
    ASSIGN_OR_RETURN(layers_[i].kv, KvCache::allocate(pages, layers_[i].shape.kv_heads, config_.head_dim));
  }
  return draft_head_.loaded() ? draft_head_.alloc_kv() : Status();
}

// Instruction sets differ in the shift of K's integers (Kernels::weight_offset), and in the bits of BF16
// products, attention and MXFP4's activations (docs/design/numerics.md). Saved states have 31 characters for
// it, of up to 8 ranks.
std::string CpuBackend::kv_page_format() const { return fmt::format("cpu int8 {}", kernels_.name); }

size_t CpuBackend::kv_page_bytes() const {
  return static_cast<size_t>(kPageTokens * kv_token_bytes(config_));
}

// K, V, then their scales.
std::array<std::span<std::byte>, 4> CpuBackend::kv_page(int layer, int32_t page) {
  KvCache& kv = layers_[layer].kv;
  const auto part = [&](const Buffer& buffer) {
    const size_t bytes = buffer.bytes() / kv.pages;
    return std::span(buffer.as<std::byte>() + page * bytes, bytes);
  };
  return {part(kv.k), part(kv.v), part(kv.k_scale), part(kv.v_scale)};
}

Status CpuBackend::read_kv_page(int layer, int32_t page, std::span<std::byte> bytes) {
  for (const std::span<std::byte> part : kv_page(layer, page)) {
    std::memcpy(bytes.data(), part.data(), part.size());
    bytes = bytes.subspan(part.size());
  }
  return {};
}

Status CpuBackend::write_kv_page(int layer, int32_t page, std::span<const std::byte> bytes) {
  for (const std::span<std::byte> part : kv_page(layer, page)) {
    std::memcpy(part.data(), bytes.data(), part.size());
    bytes = bytes.subspan(part.size());
  }
  return {};
}

}  // namespace moesaic::cpu
