#include "openai/logprobs.h"

#include <algorithm>
#include <optional>
#include <utility>

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

// The number of bytes that this text shows, U+FFFD in place of what is no character; nothing where it shows
// others.
std::optional<size_t> shown_bytes(std::string_view bytes, std::string_view text) {
  size_t at = 0;
  while (!text.empty()) {
    if (at == bytes.size()) return {};
    const Utf8Step step = utf8_step(bytes.substr(at));
    const std::string_view shown =
        step.kind == Utf8Kind::kValid ? bytes.substr(at, step.length) : kReplacementCharacter;
    if (!text.starts_with(shown)) return {};
    at += step.length;
    text.remove_prefix(shown.size());
  }
  return at;
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

void WaitingTokens::add(const SampledToken& token, std::string_view bytes) {
  tokens_.push_back({.token = token, .begin = text_.size()});
  text_ += bytes;
}

void WaitingTokens::add(const Model& model, const SpecialTokens& special, const AnswerEvent& event) {
  if (!event.token) return;
  const int32_t token = event.token->token;
  if (special.begins_text(token)) *this = {};
  if (!is_special(model, token)) add(*event.token, model.detokenize({&token, 1}));
}

std::vector<SampledToken> WaitingTokens::take_before(size_t end) {
  const auto others =
      std::ranges::find_if(tokens_, [end](const Waiting& waiting) { return waiting.begin >= end; });
  std::vector<SampledToken> taken;
  for (auto at = tokens_.begin(); at != others; ++at) taken.push_back(std::move(at->token));
  tokens_.erase(tokens_.begin(), others);
  return taken;
}

// Text of a header that was none has other words before it: it shows all tokens but one that ends it.
std::vector<SampledToken> WaitingTokens::shown_by(std::string_view text) {
  const bool stop = !tokens_.empty() && tokens_.back().token.is_stop;
  const size_t end = shown_bytes(text_, text).value_or(stop ? tokens_.back().begin : text_.size());
  std::vector<SampledToken> shown = take_before(end);
  text_.erase(0, end);
  for (Waiting& waiting : tokens_) waiting.begin -= end;
  return shown;
}

std::vector<SampledToken> WaitingTokens::rest() { return take_before(std::string::npos); }

}  // namespace moesaic::openai
