#include "openai/logprobs.h"

#include <algorithm>

#include "text/utf8.h"

namespace moesaic::openai {
namespace {

constexpr double kImpossible = -9999.0;

Json entry(const Model& model, int32_t token, double logprob) {
  const std::string bytes = model.detokenize({&token, 1});
  Json numbers = Json::array();
  for (const char byte : bytes) numbers.push_back(static_cast<unsigned char>(byte));
  return {{"token", utf8_lossy(bytes)}, {"logprob", finite_logprob(logprob)}, {"bytes", std::move(numbers)}};
}

}  // namespace

double finite_logprob(double logprob) { return std::max(logprob, kImpossible); }

Json chat_logprob(const Model& model, const SampledToken& sampled) {
  Json json = entry(model, sampled.token, sampled.logprobs.logprob);
  Json top = Json::array();
  for (const auto& [token, logprob] : sampled.logprobs.top) top.push_back(entry(model, token, logprob));
  json["top_logprobs"] = std::move(top);
  return json;
}

Json WaitingTokens::take(const Model& model, const SpecialTokens& special, const AnswerEvent& event,
                         bool text, bool content) {
  Json shown = Json::array();
  if (event.token && !special.has(event.token->token)) tokens_.push_back(*event.token);
  if (event.token && special.begins_text(event.token->token)) tokens_.clear();
  if (content) {
    for (const SampledToken& token : tokens_) shown.push_back(chat_logprob(model, token));
  }
  if (text) tokens_.clear();
  return shown;
}

}  // namespace moesaic::openai
