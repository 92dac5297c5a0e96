// The token that a row of logits gives by DeviceSampling's rule (core/batch.h).
#pragma once

#include <cstdint>
#include <span>

#include "core/batch.h"

namespace moesaic {

// ids: the token of each logit, [logits]; empty: their own indices. Equal logits and the order of
// accumulation go by id, so that a draft whose probabilities are the target's chooses the target's token.
// -1 if a logit is not finite.
int32_t choose_token(std::span<const float> logits, std::span<const int32_t> ids,
                     const DeviceSampling& sampling);

}  // namespace moesaic
