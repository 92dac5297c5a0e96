// The filter of tools/grammar/compare_jsonschema.py. Reads lines of JSON and answers each with one:
//   {"schema": S, "texts": [T...]}           -> {"error": E} or {"taken": [true...]}
//   {"schema": S, "walks": N, "seed": K}     -> {"error": E} or {"texts": [T...]}: what N answers say that
//   were
//                                               drawn at random, token by token, from what the masks allow
// Argument: a tokenizer.json.
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

class Walker {
 public:
  explicit Walker(const Tokenizer& tokenizer) : tokenizer_(tokenizer), cache_(tokenizer) {}

  // Null where it does not end.
  Json walk(const AnswerGrammar& grammar, std::mt19937& rng) {
    grammar::Matcher matcher = cache_.matcher(grammar);
    std::string text;
    for (int step = 0; step < kMaxTokens; ++step) {
      const auto allowed = matcher.allowed();
      if (!allowed.ok()) return "no token: " + text;
      const int32_t token = pick(allowed.value(), rng);
      if (tokenizer_.is_special(token)) return text;
      text += tokenizer_.token_bytes(token);
      matcher.take(token);
    }
    return nullptr;
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
  const auto grammar = AnswerGrammar::compile({.json_schema = question["schema"].dump()});
  if (!grammar.ok()) return {{"error", grammar.status().message()}};
  Json taken = Json::array(), texts = Json::array();
  for (const Json& text : question.value("texts", Json::array()))
    taken.push_back(grammar::matches(grammar.value(), text.get<std::string>()));
  std::mt19937 rng(question.value("seed", 0u));
  for (int i = 0; i < question.value("walks", 0); ++i) texts.push_back(walker.walk(grammar.value(), rng));
  return {{"taken", taken}, {"texts", texts}};
}

int run(const char* path) {
  const auto tokenizer = Tokenizer::from_hf_json(path);
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
