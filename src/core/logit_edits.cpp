#include "core/logit_edits.h"

#include <algorithm>
#include <limits>

namespace moesaic {

void apply_edits(const LogitEdits& edits, std::span<float> logits) {
  constexpr float kForbidden = -std::numeric_limits<float>::infinity();
  for (const TokenEdit& edit : edits.tokens) {
    float& logit = logits[static_cast<size_t>(edit.token)];
    if (logit != kForbidden) logit = edited(logit, edit);
  }
  if (edits.allowed.empty()) return;
  for (size_t first = 0; first < logits.size(); first += 64) {
    const std::span<float> part = logits.subspan(first, std::min<size_t>(64, logits.size() - first));
    const uint64_t word = edits.allowed[first / 64];
    if (word == 0) std::ranges::fill(part, kForbidden);
    if (word == 0 || word == ~uint64_t{0}) continue;
    for (size_t i = 0; i < part.size(); ++i) {
      if ((word >> i & 1) == 0) part[i] = kForbidden;
    }
  }
}

}  // namespace moesaic
