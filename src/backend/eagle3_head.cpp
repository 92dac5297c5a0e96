#include "backend/eagle3_head.h"

#include <algorithm>

#include "base/error.h"

namespace moesaic {

Status Eagle3DraftHead::load(const Eagle3Config& config, const Eagle3Weights& weights) {
  if (owner_.config.layers == 0) return invalid("draft head: load a model before it");
  if (owner_.cache_allocated()) return invalid("draft head: load it before the KV cache is allocated");
  RETURN_IF_ERROR(validate(config, owner_.config));
  RETURN_IF_ERROR(validate_shapes(weights, config));
  ASSIGN_OR_RETURN(const std::vector<int> boundaries, tap_boundaries(config, owner_.config));
  unload();
  config_ = config, target_ids_ = weights.target_ids;
  RETURN_IF_ERROR(load_weights(weights));
  weight_bytes_ = weight_bytes(config, weights);
  boundaries_ = boundaries;
  return {};
}

void Eagle3DraftHead::unload() {
  boundaries_.clear(), cached_ = false;
  drop();
}

Status Eagle3DraftHead::alloc_kv() {
  cached_ = false;
  RETURN_IF_ERROR(allocate_cache());
  cached_ = true;
  return {};
}

Status Eagle3DraftHead::set_taps(const std::vector<int>& boundaries) {
  ASSIGN_OR_RETURN(boundaries_, tap_boundaries(config_, owner_.config, boundaries));
  return {};
}

std::vector<MemoryPart> Eagle3DraftHead::parts(const Eagle3Config& config, double weights,
                                               const KvLayout& layout) const {
  std::vector<MemoryPart> parts;
  if (weights > 0) parts.push_back({kDraftHeadPart, weights});
  parts.push_back(
      {kDraftCachePart, kv_token_bytes(config) * layout.page_tokens * layout.full_pages, MemoryKind::kCache});
  return parts;
}

Status Eagle3DraftHead::ready() const {
  return loaded() && cached_ ? Status() : invalid("draft head: load one, then the KV cache");
}

Status Eagle3DraftHead::run_rounds() {
  for (int round = 0;; ++round) {
    const auto [rows, logit_rows] = size_of(round);
    for (int first = 0; first < rows; first += rows_at_once()) {
      const Part part = {round, first, std::min(rows_at_once(), rows - first)};
      if (round == 0) RETURN_IF_ERROR(fuse(part));
      RETURN_IF_ERROR(join(part));
      RETURN_IF_ERROR(qkv(part));
    }
    // Nothing but K and V is wanted of the other rows.
    if (logit_rows == 0) return {};
    RETURN_IF_ERROR(attend(round, logit_rows));
    RETURN_IF_ERROR(mlp(logit_rows));
    RETURN_IF_ERROR(unembed(logit_rows));
    RETURN_IF_ERROR(choose(round));
  }
}

}  // namespace moesaic
