// Checkpoint to packed weights, and the KV cache.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <iterator>

#include "backend/cpu/cpu_backend_impl.h"
#include "base/error.h"
#include "core/read_ahead.h"
#include "core/tensor_name.h"

namespace moesaic::cpu {
namespace {

// Floats of a [rows, cols] view, each row padded to whole panels.
std::vector<float> read_padded(const MatrixView& m) {
  std::vector<float> out(m.rows * padded(m.cols));
  for (int64_t r = 0; r < m.rows; ++r) read_row(m, r, std::span(out).subspan(r * padded(m.cols), m.cols));
  return out;
}

Result<std::vector<float>> read_vector(const MatrixView& m, const std::string& name) {
  std::vector<float> values = read_padded(m);
  if (std::ranges::all_of(values, [](float v) { return std::isfinite(v); })) return values;
  return invalid("{}: a value is NaN or infinite; the checkpoint is damaged", name);
}

}  // namespace

// Packed weights take what they take in the file, but for those that --dense converts.
std::vector<MemoryPart> CpuBackend::memory(const ModelConfig& config, const ModelWeights& weights,
                                           const KvLayout& layout) {
  const StoredBytes stored = stored_bytes(weights);
  const auto share = [&](Format from) {
    return bits_per_element(made_of(from, options_.dense)) / bits_per_element(from);
  };
  std::vector<MemoryPart> parts = {{kExpertsPart, stored.experts},
                                   {kProjectionsPart, stored.projections * share(weights.layers[0].q.format)},
                                   {kHeadPart, stored.head * share(weights.head.format)},
                                   {kEmbeddingPart, stored.embedding},
                                   {kVectorsPart, stored.rest},
                                   {kCachePart, kv_bytes(layout, config, *this), MemoryKind::kCache}};
  if (stored.adapters > 0) parts.push_back({kAdaptersPart, stored.adapters});
  if (draft_head_.loaded()) std::ranges::copy(draft_head_.memory(layout), std::back_inserter(parts));
  return parts;
}

Result<PackedMatrix> CpuBackend::pack(const std::vector<const MatrixView*>& sections,
                                      const std::string& name) {
  const Pack format = pack_format(sections[0]->format, options_.dense);
  for (const MatrixView* m : sections) {
    if (pack_format(m->format, options_.dense) != format)
      return invalid("{}: tensors of one projection differ in type; use --dense to convert them", name);
  }
  return pack_panels(format, sections[0]->cols, stack(sections), name, kernels_, pool_);
}

// Expert by expert; the panels of the sections alternate (gate, up, gate, up, ...).
Result<PackedMatrix> CpuBackend::pack_experts(const std::vector<const ExpertsView*>& sections,
                                              const std::string& name) {
  std::vector<MatrixView> matrices;
  for (int64_t e = 0; e < sections[0]->count; ++e) {
    for (const ExpertsView* s : sections) matrices.push_back(s->at(e));
  }
  std::vector<PanelSource> panels;
  for (size_t first = 0; first < matrices.size(); first += sections.size()) {
    for (int64_t row = 0; row < matrices[first].rows; row += kPanel) {
      for (size_t s = 0; s < sections.size(); ++s) panels.push_back({&matrices[first + s], row});
    }
  }
  return pack_panels(pack_format(sections[0]->first.format, std::nullopt), sections[0]->first.cols, panels,
                     name, kernels_, pool_, sections[0]->count);
}

Status CpuBackend::load_layer(int index, const LayerWeights& w, Layer& layer) {
  const auto name = [&](const char* tensor) { return fmt::format("layer {} {}", index, tensor); };
  ASSIGN_OR_RETURN(layer.attn_norm, read_vector(w.attn_norm, name("attention norm")));
  ASSIGN_OR_RETURN(layer.mlp_norm, read_vector(w.mlp_norm, name("mlp norm")));
  ASSIGN_OR_RETURN(layer.sinks, read_vector(w.sinks, name("sinks")));
  ASSIGN_OR_RETURN(layer.o_bias, read_vector(w.o_bias, name("o bias")));
  ASSIGN_OR_RETURN(layer.router_bias, read_vector(w.router_bias, name("router bias")));
  ASSIGN_OR_RETURN(layer.gate_bias, read_vector(w.gate_bias, name("gate bias")));
  ASSIGN_OR_RETURN(layer.up_bias, read_vector(w.up_bias, name("up bias")));
  ASSIGN_OR_RETURN(layer.down_bias, read_vector(w.down_bias, name("down bias")));
  layer.qkv_bias.clear();
  for (const MatrixView* bias : {&w.q_bias, &w.k_bias, &w.v_bias}) {
    ASSIGN_OR_RETURN(const std::vector<float> part, read_vector(*bias, name("qkv bias")));
    layer.qkv_bias.insert(layer.qkv_bias.end(), part.begin(), part.end());
  }
  ASSIGN_OR_RETURN(layer.qkv, pack({&w.q, &w.k, &w.v}, name("qkv")));
  ASSIGN_OR_RETURN(layer.o, pack({&w.o}, name("o")));
  // Routing is a discrete choice: its logits are computed in F32 whatever the dense format.
  ASSIGN_OR_RETURN(layer.router, pack_panels(Pack::kF32, w.router.cols, stack({&w.router}), name("router"),
                                             kernels_, pool_));
  ASSIGN_OR_RETURN(layer.gate_up, pack_experts({&w.gate, &w.up}, name("gate_up experts")));
  ASSIGN_OR_RETURN(layer.down, pack_experts({&w.down}, name("down experts")));
  return {};
}

Result<PackedLowRank> CpuBackend::pack(const LowRank& low, const std::string& name) {
  PackedLowRank packed;
  if (low.empty()) return packed;
  packed.rank = low.down.rows;
  ASSIGN_OR_RETURN(packed.down,
                   pack_panels(Pack::kF32, low.down.cols, stack({&low.down}), name, kernels_, pool_));
  ASSIGN_OR_RETURN(packed.up, pack_panels(Pack::kF32, low.up.cols, stack({&low.up}), name, kernels_, pool_));
  return packed;
}

Result<PackedLowRank> CpuBackend::pack(const LowRankExperts& low, bool gate_up, const std::string& name) {
  PackedLowRank packed;
  if (low.empty()) return packed;
  packed.rank = low.down.first.rows;
  ASSIGN_OR_RETURN(packed.down, pack_experts({&low.down}, name));
  ExpertsView gate = low.up, up = low.up;
  gate.first = slice_rows(low.up.first, 0, low.up.first.rows / 2, 2);
  up.first = slice_rows(low.up.first, 1, low.up.first.rows / 2, 2);
  ASSIGN_OR_RETURN(packed.up, gate_up ? pack_experts({&gate, &up}, name) : pack_experts({&low.up}, name));
  return packed;
}

Status CpuBackend::load_adapter(const LayerAdapter& adapter, Layer& layer, const std::string& name) {
  ASSIGN_OR_RETURN(layer.qkv_adapter, pack(adapter.qkv, name));
  ASSIGN_OR_RETURN(layer.o_adapter, pack(adapter.o, name));
  ASSIGN_OR_RETURN(layer.gate_up_adapter, pack(adapter.gate_up, true, name));
  ASSIGN_OR_RETURN(layer.down_adapter, pack(adapter.down, false, name));
  return {};
}

// The embedding is only ever read by rows: a copy in its own format.
Status CpuBackend::load_embed(const MatrixView& embed) {
  const int64_t row = row_bytes(embed.format, embed.cols),
                blocks = embed.scales != nullptr ? embed.cols / 32 : 0;
  ASSIGN_OR_RETURN(embed_data_, Buffer::allocate(embed.rows * row));
  ASSIGN_OR_RETURN(embed_scales_, Buffer::allocate(embed.rows * blocks));
  if (is_plain(embed.format) && embed.col_stride != row_bytes(embed.format, 1))
    return invalid("embedding: a transposed table is not supported");
  embed_ = dense_view(embed.format, embed.rows, embed.cols, embed_data_.as(),
                      blocks != 0 ? embed_scales_.as() : nullptr);
  std::atomic<bool> finite{true};
  pool_.for_each((embed.rows + 1023) / 1024, [&](int64_t chunk, int) {
    for (int64_t r = chunk * 1024; r < std::min(embed.rows, chunk * 1024 + 1024); ++r) {
      std::memcpy(embed_data_.as() + r * row, embed.data + r * embed.row_stride, row);
      if (blocks != 0)
        std::memcpy(embed_scales_.as() + r * blocks, embed.scales + r * embed.scale_stride, blocks);
      if (!row_is_finite(embed_, r)) finite = false;  // while the row is in the cache
    }
  });
  if (finite) return {};
  return check_finite(embed_, tensor_name(kNoLayer, "embed"), pool_);
}

Status CpuBackend::load(const ModelConfig& config, const ModelWeights& weights,
                        const LoadProgress& progress) {
  RETURN_IF_ERROR(validate(weights, config));
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
  ReadAhead read_ahead(weights);
  RETURN_IF_ERROR(load_embed(weights.embed));
  release(-1);
  ASSIGN_OR_RETURN(head_, pack({&weights.head}, "lm_head"));
  ASSIGN_OR_RETURN(final_norm_, read_vector(weights.final_norm, "final norm"));
  release(-1);
  RETURN_IF_ERROR(report(progress, 1, config.layers + 1));
  for (int i = 0; i < config.layers; ++i) {
    read_ahead.packing(i);
    ASSIGN_OR_RETURN(const ReadableLayer layer, layer_of(weights, i));
    RETURN_IF_ERROR(load_layer(i, layer.weights, layers_[i]));
    RETURN_IF_ERROR(load_adapter(adapter_of(weights, i), layers_[i], fmt::format("layer {} adapter", i)));
    release(i);
    RETURN_IF_ERROR(report(progress, i + 2, config.layers + 1));
  }
  const int64_t max_cols = std::max({config.hidden, config.intermediate, config.q_size()});
  ASSIGN_OR_RETURN(workspaces_, make_workspaces(pool_.threads(), max_cols));
  adapter_workspaces_.clear();
  if (!weights.adapters.empty()) {
    ASSIGN_OR_RETURN(adapter_workspaces_, make_workspaces(pool_.threads(), 0));
  }
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
    ASSIGN_OR_RETURN(layers_[i].kv, KvCache::allocate(pages, config_.kv_heads, config_.head_dim));
  }
  return draft_head_.loaded() ? draft_head_.alloc_kv() : Status();
}

// K's integers may be shifted (Kernels::weight_offset): part of the format.
std::string CpuBackend::kv_page_format() const {
  return fmt::format("cpu int8+{} int16", kernels_.weight_offset);
}

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
