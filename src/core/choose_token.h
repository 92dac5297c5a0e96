// These functions evaluate a row of logits: its likeliest tokens, the sum of its probabilities, and the token
// that DeviceSampling's rule (core/batch.h) gives. A logit of -infinity is a token that may not be chosen.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/batch.h"

namespace moesaic {

bool all_finite(std::span<const float> logits);

// (logit, token) of the n likeliest, sorted; the lower id of equals first. ids: the token of each logit,
// [logits]; empty: their own indices.
using Candidate = std::pair<float, int32_t>;
std::vector<Candidate> likeliest(std::span<const float> logits, std::span<const int32_t> ids, size_t n);

// The logarithm of the sum of e^logit. logits: at least one is finite, none NaN or +infinity.
double log_sum_exp(std::span<const float> logits);

// Equal logits and the order of accumulation go by id, so that a draft whose probabilities are the target's
// chooses the target's token. -1 if a logit is NaN or +infinity, or no token may be chosen.
int32_t choose_token(std::span<const float> logits, std::span<const int32_t> ids,
                     const DeviceSampling& sampling);

}  // namespace moesaic
