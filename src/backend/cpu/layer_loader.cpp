#include "backend/cpu/layer_loader.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "core/choose_token.h"

namespace moesaic::cpu {

Result<Table> copy_table(const MatrixView& table, const std::string& name, ThreadPool& pool) {
  Table out;
  if (table.data == nullptr) return out;
  const int64_t row = row_bytes(table.format, table.cols),
                blocks = table.scales != nullptr ? table.cols / 32 : 0;
  ASSIGN_OR_RETURN(out.data, Buffer::allocate(table.rows * row));
  ASSIGN_OR_RETURN(out.scales, Buffer::allocate(table.rows * blocks));
  if (is_plain(table.format) && table.col_stride != row_bytes(table.format, 1))
    return invalid("{}: a transposed table is not supported", name);
  out.view = dense_view(table.format, table.rows, table.cols, out.data.as(),
                        blocks != 0 ? out.scales.as() : nullptr);
  std::atomic<bool> finite{true};
  pool.for_each((table.rows + 1023) / 1024, [&](int64_t chunk, int) {
    for (int64_t r = chunk * 1024; r < std::min(table.rows, chunk * 1024 + 1024); ++r) {
      std::memcpy(out.data.as() + r * row, table.data + r * table.row_stride, row);
      if (blocks != 0)
        std::memcpy(out.scales.as() + r * blocks, table.scales + r * table.scale_stride, blocks);
      if (!row_is_finite(out.view, r)) finite = false;  // while the row is in the cache
    }
  });
  if (!finite) RETURN_IF_ERROR(check_finite(out.view, name, pool));
  return out;
}

Result<std::vector<float>> read_vector(const MatrixView& m, const std::string& name) {
  std::vector<float> values(m.data == nullptr ? 0 : m.rows * padded(m.cols));
  for (int64_t r = 0; m.data != nullptr && r < m.rows; ++r)
    read_row(m, r, std::span(values).subspan(r * padded(m.cols), m.cols));
  if (all_finite(values)) return values;
  return invalid("{}: a value is NaN or infinite; the checkpoint is damaged", name);
}

Result<PackedMatrix> LayerLoader::pack(const std::vector<const MatrixView*>& sections,
                                       const std::string& name) const {
  const auto format_of = [&](const MatrixView& m) { return packed_format(m.format, wanted_(m)); };
  const Format format = format_of(*sections[0]);
  for (const MatrixView* m : sections) {
    if (format_of(*m) != format)
      return invalid("{}: tensors of one projection differ in type; use --dense to convert them", name);
  }
  return pack_panels(format, sections[0]->cols, stack(sections), name, kernels_, pool_);
}

// Expert by expert; the panels of the sections alternate (gate, up, gate, up, ...).
Result<PackedMatrix> LayerLoader::pack_experts(const std::vector<const ExpertsView*>& sections, Format format,
                                               const std::string& name) const {
  std::vector<MatrixView> matrices;
  for (int64_t e = 0; e < sections[0]->count; ++e) {
    for (const ExpertsView* s : sections) matrices.push_back(s->at(e));
  }
  return pack_panels(format, sections[0]->first.cols, alternating_panels(matrices, sections.size()), name,
                     kernels_, pool_, sections[0]->count);
}

Result<PackedMatrix> LayerLoader::begin_pages(const LayerShape& shape, std::vector<ExpertsView> sections,
                                              Format format, const std::string& name,
                                              std::unique_ptr<ExpertPages>& pages) const {
  const int places = source_.places(shape.experts, shape.experts_per_token);
  int64_t panels = 0;  // panels of an expert
  for (const ExpertsView& s : sections) panels += panels_of(s.first.rows);
  const int64_t cols = sections[0].first.cols;
  ASSIGN_OR_RETURN(PackedMatrix m, empty_panels(format, cols, places * panels, pool_, places));
  pages = std::make_unique<ExpertPages>(std::move(sections), places, source_, name, kernels_, pool_);
  std::vector<int32_t> first(static_cast<size_t>(places));
  std::iota(first.begin(), first.end(), 0);
  RETURN_IF_ERROR(pages->bring(m, first).status());
  return m;
}

Status LayerLoader::load_vectors(const LayerWeights& w, const std::string& name, Layer& layer) const {
  const auto read = [&](const MatrixView& m, const char* tensor) {
    return read_vector(m, name + " " + tensor);
  };
  ASSIGN_OR_RETURN(layer.attn_norm, read(w.attn_norm, "attention norm"));
  ASSIGN_OR_RETURN(layer.mlp_norm, read(w.mlp_norm, "mlp norm"));
  ASSIGN_OR_RETURN(layer.sinks, read(w.sinks, "sinks"));
  ASSIGN_OR_RETURN(layer.o_bias, read(w.o_bias, "o bias"));
  ASSIGN_OR_RETURN(layer.router_bias, read(w.router_bias, "router bias"));
  layer.qkv_bias.clear();
  for (const MatrixView* bias : {&w.q_bias, &w.k_bias, &w.v_bias}) {
    ASSIGN_OR_RETURN(const std::vector<float> part, read(*bias, "qkv bias"));
    layer.qkv_bias.insert(layer.qkv_bias.end(), part.begin(), part.end());
  }
  // The kernels take sinks.
  constexpr float kNoSink = -1e4f;  // e to its power is 0
  if (layer.sinks.empty()) layer.sinks.assign(layer.shape.heads, kNoSink);
  return {};
}

// The kernels take the biases of SwiGLU, and add 1 to up.
Status LayerLoader::load_expert_biases(const LayerWeights& w, const std::string& name,
                                       ExpertLayer& layer) const {
  const LayerShape& s = layer.shape;
  ASSIGN_OR_RETURN(layer.gate_bias, read_vector(w.gate_bias, name + " gate bias"));
  ASSIGN_OR_RETURN(layer.up_bias, read_vector(w.up_bias, name + " up bias"));
  ASSIGN_OR_RETURN(layer.down_bias, read_vector(w.down_bias, name + " down bias"));
  const size_t biases = std::max(1, s.experts) * padded(s.intermediate);
  layer.gate_bias.resize(biases), layer.up_bias.resize(biases);
  const auto more = static_cast<float>(s.swiglu_offset - 1);
  for (float& bias : layer.up_bias) bias += more;
  return {};
}

Result<PackedLowRank> LayerLoader::pack(const LowRank& low, const std::string& name) const {
  PackedLowRank packed;
  if (low.empty()) return packed;
  packed.rank = low.down.rows;
  ASSIGN_OR_RETURN(packed.down,
                   pack_panels(Format::kF32, low.down.cols, stack({&low.down}), name, kernels_, pool_));
  ASSIGN_OR_RETURN(packed.up,
                   pack_panels(Format::kF32, low.up.cols, stack({&low.up}), name, kernels_, pool_));
  return packed;
}

Result<PackedLowRank> LayerLoader::pack(const LowRankExperts& low, bool gate_up,
                                        const std::string& name) const {
  PackedLowRank packed;
  if (low.empty()) return packed;
  packed.rank = low.down.first.rows;
  ASSIGN_OR_RETURN(packed.down, pack_experts({&low.down}, Format::kF32, name));
  ExpertsView gate = low.up, up = low.up;
  gate.first = slice_rows(low.up.first, 0, low.up.first.rows / 2, 2);
  up.first = slice_rows(low.up.first, 1, low.up.first.rows / 2, 2);
  const std::vector<const ExpertsView*> apart = {&gate, &up}, whole = {&low.up};
  ASSIGN_OR_RETURN(packed.up, pack_experts(gate_up ? apart : whole, Format::kF32, name));
  return packed;
}

Status LayerLoader::load_experts(const LayerShape& shape, const LayerWeights& w, const LayerAdapter& adapter,
                                 const std::string& name, ExpertLayer& layer) const {
  layer.shape = shape;
  RETURN_IF_ERROR(load_expert_biases(w, name, layer));
  const bool dense = shape.experts == 0;
  const auto format_of = [&](const ExpertsView& m) {
    return packed_format(m.first.format, dense ? wanted_(m.first) : std::nullopt);
  };
  const std::string gate_up = name + (dense ? " gate and up" : " gate_up experts"),
                    down = name + (dense ? " down" : " down experts");
  if (dense && format_of(w.gate) != format_of(w.up))
    return invalid("{}: tensors of one projection differ in type; use --dense to convert them", gate_up);
  layer.gate_up_pages.reset(), layer.down_pages.reset();
  if (!dense && source_.places(shape.experts, shape.experts_per_token) < shape.experts) {
    ASSIGN_OR_RETURN(layer.gate_up,
                     begin_pages(shape, {w.gate, w.up}, format_of(w.gate), gate_up, layer.gate_up_pages));
    ASSIGN_OR_RETURN(layer.down, begin_pages(shape, {w.down}, format_of(w.down), down, layer.down_pages));
  } else {
    ASSIGN_OR_RETURN(layer.gate_up, pack_experts({&w.gate, &w.up}, format_of(w.gate), gate_up));
    ASSIGN_OR_RETURN(layer.down, pack_experts({&w.down}, format_of(w.down), down));
  }
  ASSIGN_OR_RETURN(layer.gate_up_adapter, pack(adapter.gate_up, true, name + " adapter"));
  ASSIGN_OR_RETURN(layer.down_adapter, pack(adapter.down, false, name + " adapter"));
  return {};
}

Status LayerLoader::load(const LayerShape& shape, const LayerWeights& w, const LayerAdapter& adapter,
                         const std::string& name, Layer& layer) const {
  layer.shape = shape;
  RETURN_IF_ERROR(load_vectors(w, name, layer));
  ASSIGN_OR_RETURN(layer.qkv, pack({&w.q, &w.k, &w.v}, name + " qkv"));
  ASSIGN_OR_RETURN(layer.o, pack({&w.o}, name + " o"));
  if (shape.experts > 0) {
    // Routing is a discrete choice: its logits are computed in F32 whatever the dense format.
    ASSIGN_OR_RETURN(layer.router, pack_panels(Format::kF32, w.router.cols, stack({&w.router}),
                                               name + " router", kernels_, pool_));
  }
  ASSIGN_OR_RETURN(layer.qkv_adapter, pack(adapter.qkv, name + " adapter"));
  ASSIGN_OR_RETURN(layer.o_adapter, pack(adapter.o, name + " adapter"));
  return load_experts(shape, w, adapter, name, layer);
}

}  // namespace moesaic::cpu
