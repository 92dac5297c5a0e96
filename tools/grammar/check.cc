// The filter of tools/grammar/compare_jsonschema.py and bench_schemas.py. Reads lines of JSON and answers
// each with one. A question is {"schema": S} and any of
//   "texts": [T...]         "taken": [true...]: which of them the grammar takes
//   "walks": N, "seed": K, "tokens": M   "texts": [T...]: what N answers of up to M tokens say that were
//   drawn at random, token by token,
//                           from what the masks allow
//                           "walk_us": the processor time of each mask on the way
//   "times": [T...]         "mask_us": the same on the way through these texts
// Answers have "compile_us" too, and "error" or "notes". Argument: a tokenizer.json, or a .tiktoken file.
#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "grammar/mask_cache.h"
#include "grammar/schema_matches.h"

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxTokens = 4000;

// Processor time: other programs may keep the machine busy.
double now_us() { return static_cast<double>(std::clock()) * 1e6 / CLOCKS_PER_SEC; }

class Walker {
 public:
  explicit Walker(const Tokenizer& tokenizer) : tokenizer_(tokenizer), cache_(tokenizer) {}

  // Null where it does not end.
  Json walk(const AnswerGrammar& grammar, std::mt19937& rng, int max_tokens, Json& mask_us) {
    grammar::Matcher matcher = cache_.matcher(grammar);
    std::string text;
    for (int step = 0; step < max_tokens; ++step) {
      const double start = now_us();
      const auto allowed = matcher.allowed();
      mask_us.push_back(now_us() - start);
      if (!allowed.ok()) return "no token: " + text;
      const int32_t token = pick(allowed.value(), rng);
      if (tokenizer_.is_special(token)) return text;
      text += tokenizer_.token_bytes(token);
      matcher.take(token);
    }
    return nullptr;
  }

  // Up to where the text is refused.
  void time(const AnswerGrammar& grammar, const std::string& text, Json& mask_us) {
    grammar::Matcher matcher = cache_.matcher(grammar);
    for (const int32_t token : tokenizer_.encode(text, false)) {
      const double start = now_us();
      const auto allowed = matcher.allowed();
      mask_us.push_back(now_us() - start);
      if (!allowed.ok() || (allowed.value()[token / 64] >> (token % 64) & 1) == 0) return;
      matcher.take(token);
    }
  }

 private:
  // Every other time a token that ends something, where there is one: else texts would hardly end.
  int32_t pick(std::span<const uint64_t> allowed, std::mt19937& rng) const {
    std::vector<int32_t> all, ends;
    for (size_t i = 0; i < allowed.size() * 64; ++i) {
      if ((allowed[i / 64] >> (i % 64) & 1) == 0) continue;
      const auto token = static_cast<int32_t>(i);
      all.push_back(token);
      const std::string_view bytes = tokenizer_.token_bytes(token);
      if (tokenizer_.is_special(token) || bytes.find_first_of("\"]}") != std::string_view::npos)
        ends.push_back(token);
    }
    const auto& from = !ends.empty() && rng() % 2 == 0 ? ends : all;
    return from[rng() % from.size()];
  }

  const Tokenizer& tokenizer_;
  grammar::MaskCache cache_;
};

Json answer(const Json& question, Walker& walker) {
  const double start = now_us();
  const auto grammar = AnswerGrammar::compile({.json_schema = question["schema"].dump()});
  const double compile_us = now_us() - start;
  if (!grammar.ok()) return {{"error", grammar.status().message()}, {"compile_us", compile_us}};
  Json taken = Json::array(), texts = Json::array(), mask_us = Json::array(), walk_us = Json::array();
  for (const Json& text : question.value("texts", Json::array()))
    taken.push_back(grammar::matches(grammar.value(), text.get<std::string>()));
  std::mt19937 rng(question.value("seed", 0u));
  for (int i = 0; i < question.value("walks", 0); ++i)
    texts.push_back(walker.walk(grammar.value(), rng, question.value("tokens", kMaxTokens), walk_us));
  for (const Json& text : question.value("times", Json::array()))
    walker.time(grammar.value(), text.get<std::string>(), mask_us);
  return {{"taken", taken},     {"texts", texts},           {"mask_us", mask_us},
          {"walk_us", walk_us}, {"compile_us", compile_us}, {"notes", grammar.value().notes()}};
}

int run(const char* path) {
  const bool ranks = std::string_view(path).ends_with(".tiktoken");
  const auto tokenizer = ranks ? Tokenizer::from_tiktoken(path) : Tokenizer::from_hf_json(path);
  if (!tokenizer.ok()) return std::cerr << tokenizer.status().message() << "\n", 1;
  Walker walker(tokenizer.value());
  for (std::string line; std::getline(std::cin, line);)
    std::cout << answer(Json::parse(line), walker).dump(-1, ' ', true, Json::error_handler_t::replace)
              << std::endl;
  return 0;
}

}  // namespace
}  // namespace moesaic

int main(int argc, char** argv) { return argc == 2 ? moesaic::run(argv[1]) : 2; }
