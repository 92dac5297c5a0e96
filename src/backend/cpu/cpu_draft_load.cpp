// A draft head's checkpoint to packed weights, and its cache.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/cpu_draft.h"
#include "base/error.h"

namespace moesaic::cpu {
namespace {

// A norm's weights; empty where the head does not have it.
Status read_norm(const MatrixView& m, const char* name, const std::string& file, std::vector<float>& values) {
  values.assign(m.data == nullptr ? 0 : static_cast<size_t>(m.cols), 0.0f);
  if (m.data == nullptr) return {};
  read_row(m, 0, values);
  if (std::ranges::all_of(values, [](float v) { return std::isfinite(v); })) return {};
  return invalid("{}: tensor '{}' row 0: NaN or infinity; the draft head is damaged", file, name);
}

}  // namespace

Pack CpuDraftHead::pack_format_of(const MatrixView& m) const {
  return pack_format(m.format, draft_format(m, target_.options.dense));
}

Result<PackedMatrix> CpuDraftHead::pack(const std::vector<const MatrixView*>& sections,
                                        const char* name) const {
  const Pack format = pack_format_of(*sections[0]);
  for (const MatrixView* m : sections) {
    if (pack_format_of(*m) != format)
      return invalid("{}: tensors of '{}' differ in type; use --dense to convert them", config_.name, name);
  }
  return pack_panels(format, sections[0]->cols, stack(sections), fmt::format("{}: {}", config_.name, name),
                     target_.kernels, target_.pool);
}

// Panels alternate, so that a pair has 16 values of gate and their 16 of up.
Result<PackedMatrix> CpuDraftHead::pack_gate_up(const Eagle3Weights& w) const {
  const Pack format = pack_format_of(w.gate);
  if (pack_format_of(w.up) != format)
    return invalid("{}: gate_proj and up_proj differ in type; use --dense to convert them", config_.name);
  std::vector<PanelSource> panels;
  for (int64_t row = 0; row < w.gate.rows; row += kPanel) {
    panels.push_back({&w.gate, row});
    panels.push_back({&w.up, row});
  }
  return pack_panels(format, w.gate.cols, panels, fmt::format("{}: gate_proj, up_proj", config_.name),
                     target_.kernels, target_.pool);
}

Status CpuDraftHead::load_norms(const Eagle3Weights& w) {
  RETURN_IF_ERROR(read_norm(w.input_norm, "input_norm", config_.name, input_norm_));
  RETURN_IF_ERROR(read_norm(w.embed_norm, "input_layernorm", config_.name, embed_norm_));
  RETURN_IF_ERROR(read_norm(w.hidden_norm, "hidden_norm", config_.name, hidden_norm_));
  RETURN_IF_ERROR(read_norm(w.mlp_norm, "post_attention_layernorm", config_.name, mlp_norm_));
  RETURN_IF_ERROR(read_norm(w.norm, "norm", config_.name, norm_));
  fc_norms_.resize(w.fc_norms.size());
  for (size_t i = 0; i < fc_norms_.size(); ++i)
    RETURN_IF_ERROR(read_norm(w.fc_norms[i], "fc_norm", config_.name, fc_norms_[i]));
  return {};
}

Status CpuDraftHead::load_matrices(const Eagle3Weights& w) {
  ASSIGN_OR_RETURN(fc_, pack({&w.fc}, "fc"));
  ASSIGN_OR_RETURN(qkv_matrix_, pack({&w.q, &w.k, &w.v}, "qkv_proj"));
  ASSIGN_OR_RETURN(o_, pack({&w.o}, "o_proj"));
  ASSIGN_OR_RETURN(gate_up_, pack_gate_up(w));
  ASSIGN_OR_RETURN(down_, pack({&w.down}, "down_proj"));
  own_head_ = {};
  if (w.head.data != nullptr) {
    ASSIGN_OR_RETURN(own_head_, pack({&w.head}, "lm_head"));
  }
  return {};
}

// Read by rows: a copy in its own format. Its rows are dense, as the reader makes them.
Status CpuDraftHead::load_embed(const MatrixView& embed) {
  own_embed_ = {};
  if (embed.data == nullptr) return {};
  const size_t bytes = static_cast<size_t>(embed.rows * row_bytes(embed.format, embed.cols));
  ASSIGN_OR_RETURN(embed_data_, Buffer::allocate(bytes));
  std::memcpy(embed_data_.as(), embed.data, bytes);
  own_embed_ = dense_view(embed.format, embed.rows, embed.cols, embed_data_.as());
  return check_finite(own_embed_, fmt::format("{}: tensor 'embed_tokens'", config_.name), target_.pool);
}

Status CpuDraftHead::load(const Eagle3Config& config, const Eagle3Weights& weights) {
  if (target_.config.layers == 0) return invalid("draft head: load a model before it");
  if (target_.cache_allocated()) return invalid("draft head: load it before the KV cache is allocated");
  RETURN_IF_ERROR(validate(config, target_.config));
  RETURN_IF_ERROR(validate_shapes(weights, config));
  if (config.head_dim % 16 != 0)
    return error(StatusCode::kUnsupported,
                 "cpu: the draft head's head_dim {} is not a multiple of 16; use "
                 "--device reference",
                 config.head_dim);
  unload();
  config_ = config;
  RETURN_IF_ERROR(load_norms(weights));
  RETURN_IF_ERROR(load_matrices(weights));
  RETURN_IF_ERROR(load_embed(weights.embed));
  target_ids_ = weights.target_ids;
  rope_ = make_rope_table(config.rope, config.head_dim);
  no_sinks_.assign(static_cast<size_t>(config.heads), -1e4f);  // e to its power is 0
  zeros_.assign(kPanel, 0.0f), minus_ones_.assign(kPanel, -1.0f);
  const int64_t widest =
      std::max({config.features(), 2 * config.hidden, config.intermediate, config.q_size()});
  ASSIGN_OR_RETURN(workspaces_, make_workspaces(target_.pool.threads(), widest));
  weight_bytes_ = weight_bytes(weights);
  ASSIGN_OR_RETURN(boundaries_, tap_boundaries(config, target_.config));
  return {};
}

void CpuDraftHead::unload() { boundaries_.clear(), kv_ = {}, tapped_ = 0; }

Status CpuDraftHead::set_taps(const std::vector<int>& boundaries) {
  ASSIGN_OR_RETURN(boundaries_, tap_boundaries(config_, target_.config, boundaries));
  tapped_ = 0;
  return {};
}

// As packed: what they take in the file, but for those that are converted.
double CpuDraftHead::weight_bytes(const Eagle3Weights& w) const {
  const Format made = made_of(w.fc.format, draft_format(w.fc, target_.options.dense));
  const double share = bits_per_element(made) / bits_per_element(w.fc.format);
  Eagle3Weights table;
  table.embed = w.embed;
  return (stored_bytes(w) - stored_bytes(table)) * share + stored_bytes(table);
}

std::vector<MemoryPart> CpuDraftHead::memory(const Eagle3Config& config, const Eagle3Weights& weights,
                                             const KvLayout& layout) const {
  return {
      {kDraftHeadPart, weight_bytes(weights)},
      {kDraftCachePart, kv_token_bytes(config) * layout.page_tokens * layout.full_pages, MemoryKind::kCache}};
}

std::vector<MemoryPart> CpuDraftHead::memory(const KvLayout& layout) const {
  return {{kDraftHeadPart, weight_bytes_},
          {kDraftCachePart, kv_token_bytes(config_) * layout.page_tokens * layout.full_pages,
           MemoryKind::kCache}};
}

// Scales of places that were never written are zero: such entries are wrong, but finite.
Status CpuDraftHead::alloc_kv() {
  kv_ = {};
  ASSIGN_OR_RETURN(kv_, KvCache::allocate(target_.layout.full_pages, config_.kv_heads, config_.head_dim));
  std::memset(kv_.k_scale.as(), 0, kv_.k_scale.bytes());
  std::memset(kv_.v_scale.as(), 0, kv_.v_scale.bytes());
  return {};
}

}  // namespace moesaic::cpu
