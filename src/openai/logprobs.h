// Log-probabilities in the shape of chat completions.
#pragma once

#include <string>
#include <string_view>
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
// earlier ones began, or be held back as the beginning of a stop string. A stop token, and what is behind the
// beginning of a stop string, is never shown.
class WaitingTokens {
 public:
  // bytes: what text has of the token; of several ones, one after the other.
  void add(const SampledToken& token, std::string_view bytes);
  // Chat: an event's token. What comes before <|message|> is a header.
  void add(const Model& model, const SpecialTokens& special, const AnswerEvent& event);
  // Takes the tokens whose bytes begin in the text that is next.
  std::vector<SampledToken> shown_by(std::string_view text);
  // Takes all tokens that still wait.
  std::vector<SampledToken> rest();

 private:
  struct Waiting {
    SampledToken token;
    size_t begin;  // in text_
  };
  std::vector<SampledToken> take_before(size_t end);

  std::vector<Waiting> tokens_;
  std::string text_;  // theirs, behind what no text has had yet of tokens that were shown
};

}  // namespace moesaic::openai
