#include "backend/cpu/cpu_draft.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace moesaic::cpu {

Status CpuDraftHead::load_matrices(const Eagle3Weights& w, MatrixView& embed) {
  const Eagle3Config& c = config();
  if (c.head_dim % 16 != 0)
    return error(StatusCode::kUnsupported,
                 "cpu: the draft head's head_dim {} is not a multiple of 16; use "
                 "--device reference",
                 c.head_dim);
  const LayerLoader loader(target_.kernels, target_.pool,
                           [&](const MatrixView& m) { return draft_format(m, target_.options.dense); });
  ASSIGN_OR_RETURN(fc_, loader.pack({&w.fc}, c.name + ": fc"));
  RETURN_IF_ERROR(loader.load(layer_shape(c), layer_weights(w), {}, c.name + ":", layer_));
  own_head_ = {};
  if (w.head.data != nullptr) {
    ASSIGN_OR_RETURN(own_head_, loader.pack({&w.head}, c.name + ": lm_head"));
  }
  ASSIGN_OR_RETURN(own_embed_, copy_table(w.embed, c.name + ": tensor 'embed_tokens'", target_.pool));
  embed = own_embed_.view.data != nullptr ? own_embed_.view : target_.embed;
  rope_ = make_rope_table(c.rope, c.head_dim);
  return ops_.make_room(std::max({c.features(), 2 * c.hidden, c.intermediate, c.q_size()}), false);
}

// Bytes of the packed weights: as many as in the file, but for those that are converted.
double CpuDraftHead::weight_bytes(const Eagle3Config&, const Eagle3Weights& w) const {
  const Format made = made_of(w.fc.format, draft_format(w.fc, target_.options.dense));
  const double share = bits_per_element(made) / bits_per_element(w.fc.format);
  Eagle3Weights table;
  table.embed = w.embed;
  return (stored_bytes(w) - stored_bytes(table)) * share + stored_bytes(table);
}

// Scales of places that were never written are zero: such entries are wrong, but finite.
Status CpuDraftHead::allocate_cache() {
  layer_.kv = {};
  ASSIGN_OR_RETURN(layer_.kv,
                   KvCache::allocate(owner().layout.full_pages, config().kv_heads, config().head_dim));
  std::memset(layer_.kv.k_scale.as(), 0, layer_.kv.k_scale.bytes());
  std::memset(layer_.kv.v_scale.as(), 0, layer_.kv.v_scale.bytes());
  return {};
}

// A row that is not finite becomes logits that are not, of which no token is chosen.
void CpuDraftHead::norm(const float* x, std::span<const float> weight, float* y) const {
  if (!target_.kernels.rmsnorm(x, weight.data(), std::ssize(weight), static_cast<float>(config().rms_eps), y))
    std::fill_n(y, weight.size(), NAN);
}

void CpuDraftHead::multiply(const PackedMatrix& m, const Rows& x, int rows, int64_t width, Rows& y) {
  y.resize(rows * width);
  ops_.linear(m, x.data(), rows, {.out = y.data(), .stride = width, .width = width});
}

}  // namespace moesaic::cpu
