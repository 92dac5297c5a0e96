// The sampling parameters that all three kinds of generation share.
#pragma once

#include <cstdint>
#include <string>

#include "moesaic/types.h"
#include "openai/fields.h"

namespace moesaic::openai {

// temperature, top_p, top_k, min_p, repetition_penalty, presence_penalty, frequency_penalty, logit_bias, seed
// (drawn where there is none) and stop. vocab: tokens that logit_bias may name.
void read_sampling(Fields& fields, int vocab, SamplingParams& sampling);

// Random hexadecimal digits behind a prefix, for the objects of an answer.
std::string new_id(const char* prefix);

}  // namespace moesaic::openai
