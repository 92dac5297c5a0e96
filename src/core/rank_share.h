// A model over several ranks, each of which computes a part of every layer. Matrices are cut by rows, so each
// sum stays whole on one rank and its result has the same bits as with one rank (docs/design/parallel.md).
#pragma once

#include <cstdint>

#include "core/model_config.h"
#include "core/weights.h"

namespace moesaic {

inline constexpr int kMostRanks = 8;

struct Range {
  int64_t first = 0, count = 0;
  bool operator==(const Range&) const = default;
};

struct RankShare {
  int rank = 0, ranks = 1;

  // This rank's part of `total` things, dealt in units of so many; the last unit may be smaller.
  Range part(int64_t total, int64_t unit) const;
  // The rows of a matrix other than Q, K and V. CPU kernels and MX blocks take 32 at a time.
  Range rows(int64_t total) const { return part(total, 32); }
  // KV heads, with the query heads that share each. K and V of the others are not kept.
  Range kv_heads(int64_t total) const { return part(total, 1); }
};

// The sizes of what a rank has of a layer: its heads and its rows of the experts. `hidden` stays the width of
// the residual stream.
LayerShape cut(const LayerShape& shape, const RankShare& share);
// Views of this rank's rows: all but the embedding, the norms and the routers, which every rank has.
ModelWeights cut(const ModelWeights& weights, const ModelConfig& config, const RankShare& share);

// One line that says why a model cannot be cut for so many ranks.
Status check_ranks(const ModelConfig& config, const ModelWeights& weights, int ranks);

}  // namespace moesaic
