#include "core/rank_share.h"

#include <algorithm>

#include "base/error.h"

namespace moesaic {
namespace {

MatrixView rows_of(const MatrixView& m, Range range) {
  if (m.data != nullptr) return slice_rows(m, range.first, range.count);
  MatrixView empty = m;  // converted later: it has a shape alone
  empty.rows = range.count;
  return empty;
}

ExpertsView rows_of(const ExpertsView& m, Range range) {
  ExpertsView part = m;
  part.first = rows_of(m.first, range);
  return part;
}

// m: in a plain format.
MatrixView columns_of(const MatrixView& m, Range range) {
  MatrixView part = m;
  part.cols = range.count;
  part.data += range.first * m.col_stride;
  return part;
}

Range times(Range range, int64_t factor) { return {range.first * factor, range.count * factor}; }

struct LayerRanges {
  Range heads, q, kv, hidden, intermediate;
};

LayerRanges ranges_of(const ModelConfig& c, const RankShare& share) {
  const Range kv = share.kv_heads(c.kv_heads), heads = times(kv, c.heads / c.kv_heads);
  return {heads, times(heads, c.head_dim), times(kv, c.head_dim), share.rows(c.hidden),
          share.rows(c.intermediate)};
}

void cut(LayerWeights& w, const LayerRanges& r) {
  w.q = rows_of(w.q, r.q), w.k = rows_of(w.k, r.kv), w.v = rows_of(w.v, r.kv);
  w.q_bias = columns_of(w.q_bias, r.q);
  w.k_bias = columns_of(w.k_bias, r.kv), w.v_bias = columns_of(w.v_bias, r.kv);
  w.sinks = columns_of(w.sinks, r.heads);
  w.o = rows_of(w.o, r.hidden), w.o_bias = columns_of(w.o_bias, r.hidden);
  w.gate = rows_of(w.gate, r.intermediate), w.up = rows_of(w.up, r.intermediate);
  w.gate_bias = columns_of(w.gate_bias, r.intermediate);
  w.up_bias = columns_of(w.up_bias, r.intermediate);
  w.down = rows_of(w.down, r.hidden), w.down_bias = columns_of(w.down_bias, r.hidden);
}

}  // namespace

Range RankShare::part(int64_t total, int64_t unit) const {
  const int64_t units = (total + unit - 1) / unit;
  const int64_t first = std::min(total, units * rank / ranks * unit),
                end = std::min(total, units * (rank + 1) / ranks * unit);
  return {first, end - first};
}

LayerShape cut(const LayerShape& shape, const RankShare& share) {
  LayerShape part = shape;
  part.kv_heads = static_cast<int>(share.kv_heads(shape.kv_heads).count);
  part.heads = shape.heads / shape.kv_heads * part.kv_heads;
  part.intermediate = static_cast<int>(share.rows(shape.intermediate).count);
  return part;
}

ModelWeights cut(const ModelWeights& weights, const ModelConfig& config, const RankShare& share) {
  ModelWeights part = weights;
  if (share.ranks == 1) return part;
  const LayerRanges ranges = ranges_of(config, share);
  for (LayerWeights& layer : part.layers) cut(layer, ranges);
  part.head = rows_of(weights.head, share.rows(config.vocab));
  if (!weights.convert_experts) return part;
  part.convert_experts = [convert = weights.convert_experts, ranges](int layer) -> Result<ConvertedExperts> {
    ASSIGN_OR_RETURN(ConvertedExperts experts, convert(layer));
    experts.gate = rows_of(experts.gate, ranges.intermediate);
    experts.up = rows_of(experts.up, ranges.intermediate);
    experts.down = rows_of(experts.down, ranges.hidden);
    return experts;
  };
  return part;
}

Status check_ranks(const ModelConfig& config, const ModelWeights& weights, int ranks) {
  if (ranks == 1) return {};
  const auto fits = [&](int64_t total, int64_t unit) { return (total + unit - 1) / unit >= ranks; };
  if (!fits(config.kv_heads, 1))
    return error(StatusCode::kUsage, "--tp {}: the model has {} KV heads, and each rank takes at least one",
                 ranks, config.kv_heads);
  for (const int rows : {config.hidden, config.intermediate, config.vocab}) {
    if (!fits(rows, 32))
      return error(StatusCode::kUsage, "--tp {}: a matrix of {} rows gives each rank fewer than 32", ranks,
                   rows);
  }
  if (!weights.adapters.empty())
    return error(StatusCode::kUsage, "--tp {}: LoRA adapters are not cut; merge the adapter, or use one rank",
                 ranks);
  for (const LayerWeights& w : weights.layers) {
    for (const MatrixView* m :
         {&w.q_bias, &w.k_bias, &w.v_bias, &w.o_bias, &w.sinks, &w.gate_bias, &w.up_bias, &w.down_bias}) {
      if (!is_plain(m->format))
        return error(StatusCode::kUnsupported, "--tp {}: a bias in {} cannot be cut", ranks,
                     info_of(m->format).name);
    }
  }
  return {};
}

}  // namespace moesaic
