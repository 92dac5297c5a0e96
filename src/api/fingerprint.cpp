#include "api/fingerprint.h"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "backend/host_placement.h"
#include "base/error.h"
#include "base/file_cache.h"

namespace moesaic {
namespace {

// The samples: of the 120b's matrices 6,000 places of the file, and 0.2 GB of vectors and routers.
constexpr int64_t kExperts = 8, kRows = 16, kExpertRows = 4;  // in a layer, a dense matrix, an expert
constexpr int64_t kColumns = 512;                             // columns of a row, from its beginning
constexpr int64_t kWhole = 1 << 20;                           // elements: a smaller matrix is read whole
constexpr int64_t kAdaptedColumns = 64;            // columns of each row of an adapted model's embedding
constexpr int64_t kPieces = 64, kPieceBytes = 64;  // samples of a tensor that is converted at load

template <typename T>
uint64_t add(std::span<const T> values, uint64_t hash) {
  return fnv1a({reinterpret_cast<const char*>(values.data()), values.size_bytes()}, hash);
}

// `most` of `count` places, the first and the last among them.
template <typename Visit>
void spread(int64_t count, int64_t most, Visit&& visit) {
  const int64_t n = std::min(count, most);
  for (int64_t i = 0; i < n; ++i) visit(n > 1 ? i * (count - 1) / (n - 1) : 0);
}

uint64_t add_rows(const MatrixView& m, int64_t most, uint64_t hash) {
  std::vector<float> row(static_cast<size_t>(m.cols));
  spread(m.rows, most, [&](int64_t r) {
    read_row(m, r, row);
    hash = add(std::span<const float>(row), hash);
  });
  return hash;
}

uint64_t add_sample(const MatrixView& whole, int64_t rows, uint64_t hash) {
  MatrixView m = whole;
  m.cols = std::min(m.cols, kColumns);
  return add_rows(m, rows, hash);
}

uint64_t add(const MatrixView& m, uint64_t hash) {
  return m.rows * m.cols <= kWhole ? add_rows(m, m.rows, hash) : add_sample(m, kRows, hash);
}

uint64_t add(const ExpertsView& experts, uint64_t hash) {
  spread(experts.count, kExperts, [&](int64_t e) { hash = add_sample(experts.at(e), kExpertRows, hash); });
  return hash;
}

// An adapter may bring an embedding in which the rows of a few tokens alone are others.
uint64_t add_embedding(const ModelWeights& weights, uint64_t hash) {
  MatrixView m = weights.embed;
  if (weights.adapter_storage == nullptr || m.rows * m.cols <= kWhole) return add(m, hash);
  m.cols = std::min(m.cols, kAdaptedColumns);
  return add_rows(m, m.rows, hash);
}

uint64_t add_dense(const LayerWeights& w, uint64_t hash) {
  for (const MatrixView* m :
       {&w.attn_norm, &w.q, &w.k, &w.v, &w.q_bias, &w.k_bias, &w.v_bias, &w.o, &w.o_bias, &w.sinks,
        &w.mlp_norm, &w.router, &w.router_bias, &w.gate_bias, &w.up_bias, &w.down_bias})
    hash = add(*m, hash);
  return hash;
}

// Adapters are small, and one differs from another, or from itself at another scale, in any one matrix:
// whole.
uint64_t add_whole(const LowRank& low, uint64_t hash) {
  return add_rows(low.up, low.up.rows, add_rows(low.down, low.down.rows, hash));
}
uint64_t add_whole(const LowRankExperts& low, uint64_t hash) {
  for (int64_t e = 0; e < low.down.count; ++e) hash = add_whole(low.at(e), hash);
  return hash;
}
uint64_t add(const LayerAdapter& a, uint64_t hash) {
  for (const LowRank* low : {&a.qkv, &a.o}) {
    if (!low->empty()) hash = add_whole(*low, hash);
  }
  return add_whole(a.down, add_whole(a.gate_up, hash));
}

// To convert a layer's experts takes seconds: their bytes as the file has them.
uint64_t add_stored(const ModelWeights& weights, int layer, uint64_t hash) {
  for (const std::span<const std::byte> bytes : weights.stored_experts(layer))
    spread(std::ssize(bytes) / kPieceBytes, kPieces,
           [&](int64_t i) { hash = add(bytes.subspan(i * kPieceBytes, kPieceBytes), hash); });
  return hash;
}

uint64_t add_experts(const ModelWeights& weights, int layer, uint64_t hash) {
  if (weights.convert_experts) return add_stored(weights, layer, hash);
  const LayerWeights& w = weights.layers[layer];
  return add(w.down, add(w.up, add(w.gate, hash)));
}

// The sizes and constants on which the numbers depend beside the weights.
std::string sizes(const ModelConfig& c) {
  std::string kinds;
  for (const bool sliding : c.sliding) kinds += sliding ? 's' : 'f';
  std::string text =
      fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", c.layers, c.hidden,
                  c.intermediate, c.heads, c.kv_heads, c.head_dim, c.experts, c.experts_per_token, c.vocab,
                  c.window, kinds, c.rms_eps, c.swiglu_alpha, c.swiglu_limit, c.rope.theta, c.rope.factor,
                  c.rope.beta_fast, c.rope.beta_slow, c.rope.original_context, c.rope.truncate);
  // Only models with an attention factor get it: the others keep the fingerprints that saved states have.
  if (c.rope.attention_factor != 0) text += fmt::format(" {}", c.rope.attention_factor);
  return text;
}

}  // namespace

uint64_t fingerprint(const Checkpoint& checkpoint, std::string_view more) {
  const ModelWeights& weights = checkpoint.weights;
  uint64_t hash = fnv1a(more, fnv1a(sizes(checkpoint.config)));
  for (int i = 0; i < checkpoint.config.layers; ++i) {
    hash = add_dense(weights.layers[i], hash);
    hash = add_experts(weights, i, hash);
    hash = add(adapter_of(weights, i), hash);
  }
  return add(weights.final_norm, add_embedding(weights, hash));
}

std::string kv_arithmetic(const std::string& dense, const std::string& moe_path, bool batch_invariant,
                          Backend& backend) {
  const HostPlacement* const placement = backend.host_placement();
  const int host_layers = placement != nullptr ? placement->host_layers() : 0;
  return dense + " " + moe_path +
         (batch_invariant ? fmt::format(" batch-invariant, {} layers on the host", host_layers) : "");
}

}  // namespace moesaic
