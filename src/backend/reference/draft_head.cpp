#include "backend/reference/draft_head.h"

#include "base/error.h"

namespace moesaic::reference {

Status ReferenceDraftHead::load_matrices(const Eagle3Weights& weights, MatrixView& embed) {
  RETURN_IF_ERROR(validate(weights, config()));
  weights_ = weights;
  if (weights_.head.data == nullptr) weights_.head = model_.head;
  embed = weights.embed.data != nullptr ? weights.embed : model_.embed;
  layer_ = {.shape = layer_shape(config()),
            .weights = layer_weights(weights),
            .rope = make_rope_table(config().rope, config().head_dim)};
  return {};
}

Status ReferenceDraftHead::allocate_cache() {
  ASSIGN_OR_RETURN(layer_.cache,
                   make_cache(layer_.shape, owner().layout.page_tokens, owner().layout.full_pages));
  return {};
}

void ReferenceDraftHead::for_rows(int64_t rows, const std::function<void(int64_t)>& body) {
  for (int64_t r = 0; r < rows; ++r) body(r);
}

void ReferenceDraftHead::norm(const float* x, std::span<const float> weight, float* y) const {
  rms_norm({x, weight.size()}, weight, static_cast<float>(config().rms_eps), {y, weight.size()});
}

}  // namespace moesaic::reference
