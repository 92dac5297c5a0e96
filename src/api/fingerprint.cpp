#include "api/fingerprint.h"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file_cache.h"

namespace moesaic {
namespace {

constexpr int64_t kSampled = 64;  // columns of a row

template <typename T>
uint64_t add(std::span<const T> values, uint64_t hash) {
  return fnv1a({reinterpret_cast<const char*>(values.data()), values.size_bytes()}, hash);
}

// Of the first row and one in the middle.
uint64_t add(const MatrixView& whole, uint64_t hash) {
  MatrixView m = whole;
  m.cols = std::min(m.cols, kSampled);
  std::vector<float> row(static_cast<size_t>(m.cols));
  for (const int64_t r : {int64_t{0}, m.rows / 2}) {
    read_row(m, r, row);
    hash = add(std::span<const float>(row), hash);
  }
  return hash;
}

uint64_t add(const ExpertsView& experts, uint64_t hash) {
  return add(experts.at(experts.count - 1), add(experts.at(0), hash));
}

uint64_t add_dense(const LayerWeights& w, uint64_t hash) {
  for (const MatrixView* m : {&w.attn_norm, &w.q, &w.k, &w.v, &w.o, &w.sinks, &w.mlp_norm, &w.router})
    hash = add(*m, hash);
  return hash;
}

uint64_t add_experts(const LayerWeights& w, uint64_t hash) {
  for (const ExpertsView* e : {&w.gate, &w.up, &w.down}) hash = add(*e, hash);
  return hash;
}

uint64_t add(const LayerAdapter& a, uint64_t hash) {
  for (const LowRank* m : {&a.qkv, &a.o}) {
    if (!m->empty()) hash = add(m->up, add(m->down, hash));
  }
  for (const LowRankExperts* e : {&a.gate_up, &a.down}) {
    if (!e->empty()) hash = add(e->up, add(e->down, hash));
  }
  return hash;
}

// Experts that are converted at load take their time: those of the first layer speak for all.
Result<uint64_t> add_all_experts(const ModelWeights& weights, uint64_t hash) {
  const size_t read = weights.convert_experts ? 1 : weights.layers.size();
  for (size_t i = 0; i < read; ++i) {
    ASSIGN_OR_RETURN(const ReadableLayer layer, layer_of(weights, static_cast<int>(i)));
    hash = add_experts(layer.weights, hash);
  }
  return hash;
}

}  // namespace

Result<uint64_t> fingerprint(const Checkpoint& checkpoint, std::string_view more) {
  const ModelConfig& c = checkpoint.config;
  const ModelWeights& weights = checkpoint.weights;
  const std::string sizes = fmt::format("{} {} {} {} {} {} {} {} {} {} {} {}", c.layers, c.hidden,
                                        c.intermediate, c.heads, c.kv_heads, c.head_dim, c.experts,
                                        c.experts_per_token, c.vocab, c.window, c.rope.theta, c.rope.factor);
  uint64_t hash = fnv1a(more, fnv1a(sizes));
  for (const LayerWeights& layer : weights.layers) hash = add_dense(layer, hash);
  for (const LayerAdapter& adapter : weights.adapters) hash = add(adapter, hash);
  ASSIGN_OR_RETURN(hash, add_all_experts(weights, hash));
  return add(weights.embed, hash);
}

}  // namespace moesaic
