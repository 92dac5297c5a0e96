#include "backend/reference/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/reference/linear.h"

namespace moesaic::reference {
namespace {

// One query head over the positions of `shape`.
void attend_head(const AttentionShape& shape, std::span<const float> q, double sink, const LayerCache& cache,
                 std::span<const int32_t> pages, size_t kv_offset, std::span<float> out) {
  const auto dim = q.size();
  const auto part = [&](std::span<const float> data, int position) {
    return data.subspan(cache.offset(pages, position) + kv_offset, dim);
  };
  std::vector<double> scores;
  double largest = sink;
  for (int p = shape.first; p <= shape.last; ++p) {
    scores.push_back(dot(q, part(cache.keys(), p)) / std::sqrt(static_cast<double>(dim)));
    largest = std::max(largest, scores.back());
  }
  double sum = std::exp(sink - largest);  // the sink takes its share and adds no value
  std::vector<double> mixed(dim, 0.0);
  for (int p = shape.first; p <= shape.last; ++p) {
    const double weight = std::exp(scores[static_cast<size_t>(p - shape.first)] - largest);
    sum += weight;
    const auto value = part(cache.values(), p);
    for (size_t i = 0; i < dim; ++i) mixed[i] += weight * value[i];
  }
  for (size_t i = 0; i < dim; ++i) out[i] = static_cast<float>(mixed[i] / sum);
}

}  // namespace

void rotate(const RopeTable& table, int position, int head_dim, std::span<float> x) {
  const size_t dim = static_cast<size_t>(head_dim), half = dim / 2;
  for (size_t i = 0; i < half; ++i) {
    const double angle = position * table.inverse_frequency[i];
    const double c = std::cos(angle) * table.attention_factor, s = std::sin(angle) * table.attention_factor;
    for (size_t head = 0; head < x.size(); head += dim) {
      const double x1 = x[head + i], x2 = x[head + half + i];
      x[head + i] = static_cast<float>(x1 * c - x2 * s);
      x[head + half + i] = static_cast<float>(x2 * c + x1 * s);
    }
  }
}

void attend_row(const AttentionShape& shape, std::span<const float> q, std::span<const float> sinks,
                const LayerCache& cache, std::span<const int32_t> pages, std::span<float> out) {
  const auto dim = static_cast<size_t>(shape.head_dim);
  const auto group = static_cast<size_t>(shape.heads / shape.kv_heads);  // query heads that share a KV head
  for (size_t h = 0; h < static_cast<size_t>(shape.heads); ++h) {
    const double sink = sinks.empty() ? -std::numeric_limits<double>::infinity() : sinks[h];
    attend_head(shape, q.subspan(h * dim, dim), sink, cache, pages, h / group * dim,
                out.subspan(h * dim, dim));
  }
}

}  // namespace moesaic::reference
