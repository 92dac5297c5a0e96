#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "base/thread_pool.h"
#include "core/tensor_name.h"
#include "core/weights.h"

namespace moesaic {
namespace {

Status not_finite(const std::string& name, int64_t row) {
  return invalid("{} row {}: NaN or infinity; the checkpoint is damaged", name, row);
}

Status check_matrix(int layer, const char* name, const MatrixView& m) {
  for (int64_t r = 0; r < m.rows; ++r)
    if (!row_is_finite(m, r)) return not_finite(tensor_name(layer, name), r);
  return {};
}
Status check_experts(int layer, const char* name, const ExpertsView& experts) {
  for (int64_t e = 0; e < experts.count; ++e) RETURN_IF_ERROR(check_matrix(layer, name, experts.at(e)));
  return {};
}

Status check_layer(int layer, const LayerWeights& w) {
  const std::pair<const char*, const MatrixView*> matrices[] = {{"attn_norm", &w.attn_norm},
                                                                {"q", &w.q},
                                                                {"k", &w.k},
                                                                {"v", &w.v},
                                                                {"q bias", &w.q_bias},
                                                                {"k bias", &w.k_bias},
                                                                {"v bias", &w.v_bias},
                                                                {"o", &w.o},
                                                                {"o bias", &w.o_bias},
                                                                {"sinks", &w.sinks},
                                                                {"mlp_norm", &w.mlp_norm},
                                                                {"router", &w.router},
                                                                {"gate bias", &w.gate_bias},
                                                                {"router bias", &w.router_bias},
                                                                {"up bias", &w.up_bias},
                                                                {"down bias", &w.down_bias}};
  for (const auto& [name, matrix] : matrices) RETURN_IF_ERROR(check_matrix(layer, name, *matrix));
  RETURN_IF_ERROR(check_experts(layer, "gate", w.gate));
  RETURN_IF_ERROR(check_experts(layer, "up", w.up));
  return check_experts(layer, "down", w.down);
}

}  // namespace

bool row_is_finite(const MatrixView& m, int64_t r) { return info_of(m.format).finite(blocks_of(m, r)); }

Status check_finite(const MatrixView& m, const std::string& name, ThreadPool& pool) {
  constexpr int64_t kRows = 256;
  std::atomic<int64_t> first{m.rows};
  pool.for_each((m.rows + kRows - 1) / kRows, [&](int64_t chunk, int) {
    for (int64_t r = chunk * kRows; r < std::min(m.rows, (chunk + 1) * kRows); ++r) {
      if (row_is_finite(m, r)) continue;
      for (int64_t known = first; r < known && !first.compare_exchange_weak(known, r);) {
      }
      return;
    }
  });
  return first == m.rows ? Status() : not_finite(name, first);
}

Status check_finite(const ModelWeights& w) {
  RETURN_IF_ERROR(check_matrix(kNoLayer, "embed", w.embed));
  RETURN_IF_ERROR(check_matrix(kNoLayer, "final_norm", w.final_norm));
  RETURN_IF_ERROR(check_matrix(kNoLayer, "head", w.head));
  for (size_t l = 0; l < w.layers.size(); ++l) RETURN_IF_ERROR(check_layer(static_cast<int>(l), w.layers[l]));
  return {};
}

}  // namespace moesaic
