// The sampling parameters that all three kinds of generation share.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include "moesaic/engine.h"
#include "openai/fields.h"

namespace moesaic::openai {

// The seed of the request; nothing where it has none, or -1.
std::optional<uint64_t> given_seed(Fields& fields);
// Penalties, filters, logit_bias, seed (random where there is none, or -1), stop, stop_token_ids, ignore_eos,
// min_tokens, allowed_token_ids and bad_words.
void read_sampling(Fields& fields, const Model& model, SamplingParams& sampling);
inline constexpr int kMaxTopLogprobs = 20;
// logprobs and top_logprobs, as in chat completions.
void read_logprobs(Fields& fields, SamplingParams& sampling);
// The first of the keys that is there counts; the others are checked too. -1: as many tokens as the context
// allows.
void read_max_tokens(Fields& fields, std::initializer_list<const char*> keys, SamplingParams& sampling);
// Refuses parameters that contradict the answer's format.
void check_with_grammar(Fields& fields);

// Random hexadecimal digits behind a prefix, for the objects of an answer.
std::string new_id(const char* prefix);

}  // namespace moesaic::openai
