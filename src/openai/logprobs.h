// Log-probabilities in the shape of chat completions.
#pragma once

#include "moesaic/engine.h"
#include "openai/fields.h"

namespace moesaic::openai {

// JSON knows no infinity; OpenAI's own stand-in.
double finite_logprob(double logprob);

// {token, logprob, bytes, top_logprobs: [{token, logprob, bytes}]}
Json chat_logprob(const Model& model, const SampledToken& sampled);

}  // namespace moesaic::openai
