// Log-probabilities in the shape of chat completions.
#pragma once

#include <vector>

#include "moesaic/engine.h"
#include "openai/answer.h"
#include "openai/fields.h"
#include "openai/special_tokens.h"

namespace moesaic::openai {

// JSON knows no infinity; OpenAI's own stand-in.
double finite_logprob(double logprob);

// {token, logprob, bytes, top_logprobs: [{token, logprob, bytes}]}
Json chat_logprob(const Model& model, const SampledToken& sampled);

// The tokens of one generation that wait for the text which shows them: a token may complete a character that
// earlier ones began, or be held back as the beginning of a stop string.
class WaitingTokens {
 public:
  // Takes an event's token. Where the event shows text, no token waits any longer, and where that is content
  // the array has their log-probabilities. What comes before <|message|> is a header.
  Json take(const Model& model, const SpecialTokens& special, const AnswerEvent& event, bool text,
            bool content);

 private:
  std::vector<SampledToken> tokens_;
};

}  // namespace moesaic::openai
