#include "core/merge_adapter.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "mx/formats.h"

namespace moesaic {
namespace {

constexpr int64_t kRowsAtATime = 16;

// Rows [first, first + count) of up, every `step`-th, that belong to a matrix.
LowRank rows_of(const LowRank& low, int64_t first, int64_t count, int64_t step = 1) {
  return {low.down, slice_rows(low.up, first, count, step)};
}
LowRankExperts rows_of(const LowRankExperts& low, int64_t first, int64_t count, int64_t step) {
  LowRankExperts part = low;
  part.up.first = slice_rows(low.up.first, first, count, step);
  return part;
}

const float* floats(const MatrixView& m, int64_t row) {
  return reinterpret_cast<const float*>(m.data + row * m.row_stride);
}

// Row r of w, and what the adapter adds to it.
void merge_row(const MatrixView& w, const LowRank& low, int64_t r, std::vector<float>& row, std::byte* out) {
  row.resize(static_cast<size_t>(w.cols));
  read_row(w, r, row);
  const float* const up = floats(low.up, r);
  for (int64_t k = 0; k < low.up.cols; ++k) {
    if (up[k] == 0) continue;  // belongs to another matrix, or to none
    const float* const down = floats(low.down, k);
    for (int64_t c = 0; c < w.cols; ++c) row[static_cast<size_t>(c)] += up[k] * down[c];
  }
  for (const float v : row) {
    const uint16_t code = mx::encode_bf16(v);
    std::memcpy(out, &code, sizeof code);
    out += sizeof code;
  }
}

MatrixView as_bf16(const MatrixView& m, const std::byte* data) {
  return dense_view(Format::kBF16, m.rows, m.cols, data);
}
ExpertsView as_bf16(const ExpertsView& e, const std::byte* data) {
  const MatrixView first = as_bf16(e.first, data);
  return {first, e.count, first.rows * first.row_stride, 0};
}

class Merger {
 public:
  Merger(MergedLayer& layer, ThreadPool& pool) : layer_(layer), pool_(pool) {}

  Status merge(ExpertsView& w, const LowRankExperts& low) {
    ASSIGN_OR_RETURN(
        Buffer buffer,
        Buffer::allocate(static_cast<size_t>(w.count * w.first.rows * w.first.cols) * sizeof(uint16_t)));
    const int64_t rows = w.first.rows, row = w.first.cols * static_cast<int64_t>(sizeof(uint16_t)),
                  all = w.count * rows;
    pool_.for_each((all + kRowsAtATime - 1) / kRowsAtATime, [&](int64_t item, int) {
      std::vector<float> scratch;
      for (int64_t i = item * kRowsAtATime; i < std::min(all, (item + 1) * kRowsAtATime); ++i)
        merge_row(w.at(i / rows), low.at(i / rows), i % rows, scratch, buffer.as<>() + i * row);
    });
    w = as_bf16(w, buffer.as<>());
    layer_.storage.push_back(std::move(buffer));
    return {};
  }
  Status merge(MatrixView& w, const LowRank& low) {
    ExpertsView one{.first = w, .count = 1};
    RETURN_IF_ERROR(merge(one, {{.first = low.down, .count = 1}, {.first = low.up, .count = 1}}));
    w = one.first;
    return {};
  }

 private:
  MergedLayer& layer_;
  ThreadPool& pool_;
};

}  // namespace

Result<MergedLayer> merge_adapter(const LayerWeights& w, const LayerAdapter& a, ThreadPool& pool) {
  MergedLayer layer{.weights = w, .storage = {}};
  LayerWeights& m = layer.weights;
  Merger merger(layer, pool);
  if (!a.qkv.empty()) {
    RETURN_IF_ERROR(merger.merge(m.q, rows_of(a.qkv, 0, w.q.rows)));
    RETURN_IF_ERROR(merger.merge(m.k, rows_of(a.qkv, w.q.rows, w.k.rows)));
    RETURN_IF_ERROR(merger.merge(m.v, rows_of(a.qkv, w.q.rows + w.k.rows, w.v.rows)));
  }
  if (!a.o.empty()) RETURN_IF_ERROR(merger.merge(m.o, a.o));
  if (!a.gate_up.empty()) {
    RETURN_IF_ERROR(merger.merge(m.gate, rows_of(a.gate_up, 0, w.gate.first.rows, 2)));
    RETURN_IF_ERROR(merger.merge(m.up, rows_of(a.gate_up, 1, w.up.first.rows, 2)));
  }
  if (!a.down.empty()) RETURN_IF_ERROR(merger.merge(m.down, a.down));
  return layer;
}

LayerWeights merged_formats(const LayerWeights& w, const LayerAdapter& a) {
  LayerWeights m = w;
  for (MatrixView* dense : {&m.q, &m.k, &m.v}) {
    if (!a.qkv.empty()) *dense = as_bf16(*dense, dense->data);
  }
  if (!a.o.empty()) m.o = as_bf16(m.o, m.o.data);
  for (ExpertsView* experts : {&m.gate, &m.up}) {
    if (!a.gate_up.empty()) *experts = as_bf16(*experts, experts->first.data);
  }
  if (!a.down.empty()) m.down = as_bf16(m.down, m.down.first.data);
  return m;
}

ModelWeights merged_formats(const ModelWeights& weights) {
  ModelWeights merged = weights;
  for (size_t i = 0; i < weights.adapters.size(); ++i)
    merged.layers[i] = merged_formats(weights.layers[i], weights.adapters[i]);
  return merged;
}

}  // namespace moesaic
