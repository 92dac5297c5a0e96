#include "openai/sampling_fields.h"

#include <fmt/format.h>

#include <charconv>
#include <random>

namespace moesaic::openai {
namespace {

constexpr size_t kMaxStops = 16, kMaxStopBytes = 512;
constexpr int kMaxTopK = 1 << 20;

uint64_t random_number() {
  thread_local std::mt19937_64 generator{(uint64_t{std::random_device{}()} << 32) | std::random_device{}()};
  return generator();
}

void read_logit_bias(Fields& fields, int vocab, SamplingParams& sampling) {
  const Json* bias = fields.find("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object()) return fields.refuse("logit_bias", "must be an object of token ids and biases");
  for (const auto& [key, value] : bias->items()) {
    int token = -1;
    const auto [end, code] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (code != std::errc() || end != key.data() + key.size() || token < 0 || token >= vocab)
      return fields.refuse("logit_bias",
                           fmt::format("'{}' is no token id below {}", key.substr(0, 40), vocab));
    if (!value.is_number() || !(value.get<double>() >= -100 && value.get<double>() <= 100))
      return fields.refuse("logit_bias", fmt::format("the bias of {} is no number from -100 to 100", token));
    sampling.logit_bias[token] = value.get<float>();
  }
}

void read_stop(Fields& fields, SamplingParams& sampling) {
  fields.strings("stop", sampling.stop_strings, kMaxStops);
  for (const std::string& stop : sampling.stop_strings) {
    if (stop.empty() || stop.size() > kMaxStopBytes)
      return fields.refuse("stop", fmt::format("a stop string has 1 to {} bytes", kMaxStopBytes));
  }
}

}  // namespace

void read_sampling(Fields& fields, int vocab, SamplingParams& sampling) {
  fields.number("temperature", sampling.temperature, 0, 2);
  fields.number("top_p", sampling.top_p, 0, 1);
  if (sampling.top_p == 0) sampling.top_p = 1e-9;  // the likeliest token alone
  fields.integer("top_k", sampling.top_k, -1, kMaxTopK);
  if (sampling.top_k == -1) sampling.top_k = 0;  // as vLLM spells "all"
  fields.number("min_p", sampling.min_p, 0, 1);
  fields.number("repetition_penalty", sampling.repetition_penalty, 0.01, 10);
  fields.number("presence_penalty", sampling.presence_penalty, -2, 2);
  fields.number("frequency_penalty", sampling.frequency_penalty, -2, 2);
  auto seed = static_cast<int64_t>(random_number());
  fields.integer("seed", seed, INT64_MIN, INT64_MAX);
  sampling.seed = static_cast<uint64_t>(seed);
  read_logit_bias(fields, vocab, sampling);
  read_stop(fields, sampling);
}

std::string new_id(const char* prefix) {
  return fmt::format("{}{:016x}{:08x}", prefix, random_number(), random_number() >> 32);
}

}  // namespace moesaic::openai
