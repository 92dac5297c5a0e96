#include "backend/hot_counts.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/file_cache.h"

namespace moesaic {
namespace {

// age() keeps counts far below.
constexpr uint32_t kMostCount = 1u << 28;

uint64_t hash_of(const MatrixView& m, int64_t row, uint64_t hash) {
  if (m.data == nullptr) return hash;
  std::vector<float> values(static_cast<size_t>(m.cols));
  read_row(m, row, values);
  return fnv1a({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)}, hash);
}

}  // namespace

std::string hot_counts_key(const ModelConfig& c, const ModelWeights& weights) {
  uint64_t hash = fnv1a("routers");
  for (const LayerWeights& layer : weights.layers) {
    hash = hash_of(layer.router, 0, hash);
    hash = hash_of(layer.router_bias, 0, hash);
  }
  return fmt::format("moesaic hot experts 1\nshape {} {} {} {}\nrouters {:016x}\n", c.layers, c.experts,
                     c.experts_per_token, c.hidden, hash);
}

bool read_hot_counts(const std::string& folder, const std::string& key, ExpertUse& use) {
  const std::optional<std::string> blob = FileCache(folder).find(key);
  const size_t layer_bytes = static_cast<size_t>(use.experts()) * sizeof(uint32_t);
  if (!blob || blob->empty() || blob->size() % layer_bytes != 0) return false;
  std::vector<uint32_t> kept(blob->size() / sizeof(uint32_t)), counts = use.counts();
  std::memcpy(kept.data(), blob->data(), blob->size());
  if (std::ranges::any_of(kept, [](uint32_t n) { return n > kMostCount; })) return false;
  const size_t both = std::min(kept.size(), counts.size());
  std::copy(kept.end() - static_cast<ptrdiff_t>(both), kept.end(),
            counts.end() - static_cast<ptrdiff_t>(both));
  use.begin_with(counts);
  return true;
}

Status write_hot_counts(const std::string& folder, const std::string& key, const ExpertUse& use) {
  const std::vector<uint32_t> counts = use.counts();
  if (std::ranges::all_of(counts, [](uint32_t n) { return n == 0; })) return {};
  return FileCache(folder).put(
      key, {reinterpret_cast<const char*>(counts.data()), counts.size() * sizeof(uint32_t)});
}

}  // namespace moesaic
