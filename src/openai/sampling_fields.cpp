#include "openai/sampling_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <random>

#include "base/strings.h"

namespace moesaic::openai {
namespace {

constexpr size_t kMaxStops = 64, kMaxStopBytes = 512;
constexpr int kMaxTopK = 1 << 20;
constexpr size_t kMaxStopTokens = 256, kMaxAllowedTokens = 1 << 18, kMaxBiases = 1024;
constexpr size_t kMaxBadWords = 128, kMaxBadWordBytes = 128;
constexpr float kNever = -1e4F;   // a bias
constexpr int64_t kAnySeed = -1;  // as llama.cpp, Ollama and vLLM have it

uint64_t random_number() {
  thread_local std::mt19937_64 generator{(uint64_t{std::random_device{}()} << 32) | std::random_device{}()};
  return generator();
}

// A number, or llama.cpp's false for a token that is never wanted.
std::optional<float> bias_of(const Json& value) {
  if (value == false) return kNever;
  const std::optional<double> bias = text::double_of(value);
  if (!bias || !(*bias >= -100 && *bias <= 100)) return {};
  return static_cast<float>(*bias);
}

// name: the token's, in an error.
void add_bias(Fields& fields, const std::string& name, std::optional<int32_t> token, const Json& value,
              SamplingParams& sampling, int vocab) {
  if (!token) return fields.refuse("logit_bias", fmt::format("{} must be a token id below {}", name, vocab));
  const std::optional<float> bias = bias_of(value);
  if (!bias)
    return fields.refuse("logit_bias", fmt::format("the bias of {} is no number from -100 to 100", *token));
  sampling.logit_bias[*token] = *bias;
}

std::optional<int32_t> token_of_key(const std::string& key, int vocab) {
  const auto token = number_of<int32_t>(key);
  return token && *token >= 0 && *token < vocab ? token : std::nullopt;
}

// An object of ids and biases, or llama.cpp's array of pairs.
void read_logit_bias(Fields& fields, int vocab, SamplingParams& sampling) {
  const Json* bias = fields.find("logit_bias");
  if (bias == nullptr) return;
  if (bias->size() > kMaxBiases)
    return fields.refuse("logit_bias", fmt::format("names more than {} tokens", kMaxBiases));
  if (bias->is_object()) {
    for (const auto& [key, value] : bias->items())
      add_bias(fields, fmt::format("'{}'", key.substr(0, 40)), token_of_key(key, vocab), value, sampling,
               vocab);
    return;
  }
  if (!bias->is_array()) return fields.refuse("logit_bias", "must be an object of token ids and biases");
  for (const Json& pair : *bias) {
    if (!pair.is_array() || pair.size() != 2)
      return fields.refuse("logit_bias", "must be an object, or an array of pairs, of token ids and biases");
    add_bias(fields, "a pair's first member", token_id(pair[0], vocab), pair[1], sampling, vocab);
  }
}

void read_stop(Fields& fields, SamplingParams& sampling) {
  fields.strings("stop", sampling.stop_strings, kMaxStops);
  std::erase(sampling.stop_strings, "");  // as forms send a field that nobody filled in
  for (const std::string& stop : sampling.stop_strings) {
    if (stop.size() > kMaxStopBytes)
      return fields.refuse("stop", fmt::format("a stop string has up to {} bytes", kMaxStopBytes));
  }
}

void read_stop_tokens(Fields& fields, const Model& model, SamplingParams& sampling) {
  bool ignore_eos = false;
  fields.read("ignore_eos", ignore_eos);
  std::vector<int32_t>& stops = sampling.stop_tokens;
  fields.tokens("stop_token_ids", model.vocab(), stops, kMaxStopTokens);
  if (!ignore_eos && stops.empty()) return;
  const std::vector<int32_t> own = ignore_eos ? std::vector{kNoToken} : model.stop_tokens();
  stops.insert(stops.end(), own.begin(), own.end());
}

// Forbids a word's tokens as vLLM does: at a text's beginning and behind a space.
void read_bad_words(Fields& fields, const Model& model, SamplingParams& sampling) {
  std::vector<std::string> words;
  fields.strings("bad_words", words, kMaxBadWords);
  for (const std::string& word : words) {
    if (word.empty() || word.size() > kMaxBadWordBytes)
      return fields.refuse("bad_words", fmt::format("a word has 1 to {} bytes", kMaxBadWordBytes));
    for (const std::string& text : {word, " " + word}) {
      Result<std::vector<int32_t>> tokens = model.tokenize(text);
      if (!tokens.ok()) return fields.refuse("bad_words", tokens.status().message());
      sampling.bad_words.push_back(std::move(tokens).value());
    }
  }
}

void read_allowed_tokens(Fields& fields, const Model& model, SamplingParams& sampling) {
  if (fields.find("allowed_token_ids") == nullptr) return;
  fields.tokens("allowed_token_ids", model.vocab(), sampling.allowed_tokens, kMaxAllowedTokens);
  if (sampling.allowed_tokens.empty()) fields.refuse("allowed_token_ids", "allows nothing");
}

// repeat_penalty and repeat_last_n are llama.cpp's; -1 tokens are all of them.
void read_penalties(Fields& fields, SamplingParams& sampling) {
  double other = 1;
  fields.number("repetition_penalty", sampling.repetition_penalty, 0.01, 10);
  fields.number("repeat_penalty", other, 0.01, 10);
  fields.number("presence_penalty", sampling.presence_penalty, -2, 2);
  fields.number("frequency_penalty", sampling.frequency_penalty, -2, 2);
  if (fields.find("repeat_penalty") != nullptr && fields.find("repetition_penalty") != nullptr &&
      other != sampling.repetition_penalty)
    fields.refuse("repeat_penalty", "differs from repetition_penalty, which is the same");
  if (fields.find("repeat_penalty") != nullptr) sampling.repetition_penalty = other;
  int last = -1;
  fields.integer("repeat_last_n", last, -1, INT32_MAX);
  if (last == 0) {  // they look at no token
    sampling.repetition_penalty = 1;
    sampling.presence_penalty = sampling.frequency_penalty = 0;
  }
  sampling.penalty_window = std::max(last, 0);
}

}  // namespace

std::optional<uint64_t> given_seed(Fields& fields) {
  int64_t seed = kAnySeed;
  fields.integer("seed", seed, INT64_MIN, INT64_MAX);
  return seed == kAnySeed ? std::nullopt : std::optional(static_cast<uint64_t>(seed));
}

void read_sampling(Fields& fields, const Model& model, SamplingParams& sampling) {
  fields.number("temperature", sampling.temperature, 0, 2);
  fields.number("top_p", sampling.top_p, 0, 1);
  if (sampling.top_p == 0) sampling.top_p = 1e-9;  // the likeliest token alone
  fields.integer("top_k", sampling.top_k, -1, kMaxTopK);
  if (sampling.top_k == -1) sampling.top_k = 0;  // as vLLM spells "all"
  fields.number("min_p", sampling.min_p, 0, 1);
  read_penalties(fields, sampling);
  const std::optional<uint64_t> seed = given_seed(fields);
  sampling.seed = seed ? *seed : random_number();
  read_logit_bias(fields, model.vocab(), sampling);
  read_stop(fields, sampling);
  read_stop_tokens(fields, model, sampling);
  fields.integer("min_tokens", sampling.min_tokens, 0, INT32_MAX);
  fields.read("include_stop_str_in_output", sampling.include_stop);
  read_allowed_tokens(fields, model, sampling);
  read_bad_words(fields, model, sampling);
}

void read_max_tokens(Fields& fields, std::initializer_list<const char*> keys, SamplingParams& sampling) {
  std::optional<int> first;
  for (const char* key : keys) {
    if (fields.find(key) == nullptr) continue;
    int tokens = sampling.max_tokens;
    fields.integer(key, tokens, -1, INT32_MAX);
    if (tokens == 0) fields.refuse(key, "must be at least 1, or -1 for as many as the context allows");
    if (!first) first = std::max(tokens, 0);
  }
  if (first) sampling.max_tokens = *first;
  if (sampling.max_tokens > 0 && sampling.min_tokens > sampling.max_tokens)
    fields.refuse("min_tokens", fmt::format("is more than the {} that are allowed", sampling.max_tokens));
}

void read_logprobs(Fields& fields, SamplingParams& sampling) {
  bool wanted = false;
  int top = 0;
  fields.read("logprobs", wanted);
  fields.integer("top_logprobs", top, 0, kMaxTopLogprobs);
  if (top > 0 && !wanted) fields.refuse("top_logprobs", "needs \"logprobs\": true");
  if (wanted) sampling.top_logprobs = top;
}

void check_with_grammar(Fields& fields) {
  bool ignore_eos = false;
  fields.read("ignore_eos", ignore_eos);
  constexpr const char* kWhy =
      "cannot be held together with a form of the answer, strict tools or a call that must be made";
  if (ignore_eos) fields.refuse("ignore_eos", kWhy);
  if (fields.find("allowed_token_ids") != nullptr) fields.refuse("allowed_token_ids", kWhy);
}

std::string new_id(const char* prefix) {
  return fmt::format("{}{:016x}{:08x}", prefix, random_number(), random_number() >> 32);
}

}  // namespace moesaic::openai
