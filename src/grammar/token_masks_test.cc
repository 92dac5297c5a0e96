#include "grammar/token_masks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <ctime>
#include <random>

#include "grammar/compiled_grammar.h"
#include "grammar/mask_cache.h"
#include "grammar/schema_matches.h"
#include "text/small_tokenizer.h"

namespace moesaic::grammar {
namespace {

AnswerGrammar compile(const AnswerFormat& format) {
  auto grammar = AnswerGrammar::compile(format);
  EXPECT_TRUE(grammar.ok()) << grammar.status().message();
  return std::move(grammar).value();
}

const char* const kSchema = R"({"type": "object", "properties": {
    "hello": {"type": "string", "maxLength": 6}, "n": {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}]},
    "list": {"type": "array", "items": {"$ref": "#"}}}, "required": ["hello", "n"]})";

bool has(std::span<const uint64_t> mask, int32_t token) {
  return (mask[token / 64] >> (token % 64) & 1) != 0;
}

// By definition: a token may come where the automaton follows each of its bytes.
bool may_come(const CompiledGrammar& g, const TokenTrie& trie, const std::string& text, int32_t token) {
  for (const std::string& string : trie.strings(token)) {
    Machine machine(g.automaton);
    Machine::Step at = machine.enter(g.rule, kBottom);
    for (const char c : text + string) at = machine.step(at.value(), static_cast<uint8_t>(c));
    if (!at.value().empty()) return true;
  }
  return false;
}

// Random answers; at each of their steps every token's bit is compared with the definition.
void compare(const AnswerFormat& format, uint32_t seed, int steps = 60) {
  const Tokenizer tokenizer = small::tokenizer();
  const TokenTrie trie(tokenizer);
  const AnswerGrammar grammar = compile(format);
  MaskCache cache(tokenizer);
  std::mt19937 rng(seed);
  Matcher matcher = cache.matcher(grammar);
  std::string text;
  for (int step = 0; step < steps; ++step) {
    const auto allowed = matcher.allowed();
    if (!allowed.ok()) break;
    std::vector<int32_t> tokens;
    for (int32_t token = 0; token < tokenizer.vocab_size(); ++token) {
      EXPECT_EQ(has(allowed.value(), token), may_come(*grammar.compiled(), trie, text, token))
          << text << " " << token;
      if (has(allowed.value(), token)) tokens.push_back(token);
    }
    const int32_t token = tokens[rng() % tokens.size()];
    const std::vector<std::string> strings = trie.strings(token);
    const bool first = strings.size() == 1 || may_come(*grammar.compiled(), trie, text + strings[0], -1);
    text += first ? strings[0] : strings.back();
    matcher.take(token);
    if (tokenizer.is_special(token) && !format.chat) break;
  }
}

TEST(TokenMasks, AreWhatTheAutomatonSays) {
  for (uint32_t seed = 0; seed < 8; ++seed) compare({.json_schema = kSchema}, seed);
}

// Longer than any token: most counts are far from both limits.
TEST(TokenMasks, OfCountedParts) {
  for (uint32_t seed = 0; seed < 3; ++seed) {
    compare({.json_schema = R"({"type": "string", "minLength": 40, "maxLength": 90})"}, seed, 90);
    compare({.json_schema =
                 R"({"items": {"items": {"type": "null"}, "maxItems": 30}, "minItems": 25, "maxItems": 50})"},
            seed, 90);
  }
}

TEST(TokenMasks, OfAChat) {
  for (uint32_t seed = 0; seed < 8; ++seed)
    compare({.chat = true, .json_schema = kSchema, .functions = {{"f", R"({"type": "object"})"}, {"g", ""}}},
            seed);
}

// Whatever a mask may cost, each token of a single byte that may come stays, and none comes that may not.
TEST(TokenMasks, ThatAreCutGoOn) {
  const Tokenizer tokenizer = small::tokenizer();
  const TokenTrie trie(tokenizer);
  const AnswerGrammar grammar = compile({.json_schema = kSchema});
  const CompiledGrammar& g = *grammar.compiled();
  const std::string text = R"({"hello": "aaaa", "n": [)";
  for (const uint64_t work : {0, 1, 10, 100}) {
    TokenMasks masks(g.automaton, g.rule, trie, work);
    TokenMasks::Situation at = masks.start().value();
    for (size_t i = 0; i + 1 < text.size(); ++i) {
      TokenMasks::Mask made(at);
      masks.begin(Effort::kSlice);
      while (masks.advance(made) != Progress::kDone) masks.begin(Effort::kSlice);
      const auto mask = masks.tokens(made);
      bool any = false;
      for (int32_t token = 0; token < tokenizer.vocab_size(); ++token) {
        const bool may = may_come(g, trie, text.substr(0, i), token);
        any = any || has(mask, token);
        EXPECT_TRUE(may || !has(mask, token)) << work << " " << i << " " << token;
        EXPECT_TRUE(!may || token >= 256 || has(mask, token)) << work << " " << i << " " << token;
      }
      EXPECT_TRUE(any);
      ASSERT_EQ(masks.after(at, text.substr(i, 1), at), Progress::kDone);
    }
  }
}

// The tokens of `text`, one by one; -1 where all were allowed, else the first that was not.
int refused_at(Matcher matcher, const Tokenizer& tokenizer, const std::string& text) {
  const std::vector<int32_t> tokens = tokenizer.encode(text, true);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto allowed = matcher.allowed();
    if (!allowed.ok() || !has(allowed.value(), tokens[i])) return static_cast<int>(i);
    matcher.take(tokens[i]);
  }
  return -1;
}

TEST(Matcher, FollowsHarmony) {
  const Tokenizer tokenizer = small::tokenizer();
  MaskCache cache(tokenizer);
  const auto taken = [&](const AnswerFormat& format, const std::string& text) {
    return refused_at(cache.matcher(compile(format)), tokenizer, text) < 0;
  };
  const AnswerFormat answer{.chat = true, .json_schema = R"({"type": "object"})"};
  const std::string thought = "<|channel|>analysis<|message|>{hm<|end|><|start|>assistant",
                    final = "<|channel|>final";
  EXPECT_TRUE(taken(answer, thought + thought + final + "<|message|>{\"a\": 1}<|return|>"));
  EXPECT_TRUE(taken(answer, final + " <|constrain|>json<|message|>{}<|return|>"));
  EXPECT_FALSE(taken(answer, final + "<|message|>hm"));
  EXPECT_FALSE(taken(answer, final + "<|message|>{}<|end|>"));
  EXPECT_FALSE(taken(answer, final + "<|message|>{}<|return|><|return|>"));
  EXPECT_FALSE(taken(answer, "<|channel|>analysis<|message|>hm<|return|>"));
  EXPECT_FALSE(taken(answer, "<|channel|>commentary to=functions.f<|message|>{}<|call|>"));
  EXPECT_FALSE(taken(answer, "{}"));

  AnswerFormat calls{.chat = true, .functions = {{"f", R"({"type": "object"})"}, {"g", ""}}};
  const std::string call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>";
  for (const bool must : {false, true}) {
    calls.must_call = must;
    EXPECT_TRUE(taken(calls, thought + call + "{}<|call|>"));
    EXPECT_TRUE(taken(calls, " to=functions.g<|channel|>commentary<|message|>any<|call|>"));
    EXPECT_TRUE(taken(
        calls, "<|channel|>commentary<|message|>I call<|end|><|start|>assistant" + call + "{}<|call|>"));
    EXPECT_FALSE(taken(calls, call + "[]"));
    EXPECT_FALSE(taken(calls, "<|channel|>commentary to=functions.h<|message|>"));
    EXPECT_EQ(taken(calls, final + "<|message|>text<|return|>"), !must);
  }
}

TEST(Matcher, EndsPlainTextWithAnyStopToken) {
  const Tokenizer tokenizer = small::tokenizer();
  MaskCache cache(tokenizer);
  const AnswerGrammar grammar = compile({.json_schema = R"({"type": "integer"})"});
  EXPECT_EQ(refused_at(cache.matcher(grammar), tokenizer, "12<|return|>"), -1);
  EXPECT_EQ(refused_at(cache.matcher(grammar), tokenizer, "12<|endoftext|>"), -1);
  EXPECT_EQ(refused_at(cache.matcher(grammar), tokenizer, "12<|end|>"), 2);
  EXPECT_EQ(refused_at(cache.matcher(grammar), tokenizer, "12 "), 2);
}

TEST(Matcher, SaysSoWhereNothingMayCome) {
  const Tokenizer tokenizer = small::tokenizer();
  MaskCache cache(tokenizer);
  Matcher matcher = cache.matcher(compile({.json_schema = R"({"type": "integer"})"}));
  matcher.take('x');
  EXPECT_EQ(matcher.allowed().status().code(), StatusCode::kUnsupported);
}

// Many ways at once, each with its own count.
TEST(TokenMasks, OfManyAlternatives) {
  std::string strings;
  for (int i = 1; i <= 20; ++i)
    strings += (i > 1 ? "," : "") + fmt::format(R"({{"type": "string", "maxLength": {}}})", i);
  compare({.json_schema = R"({"anyOf": [)" + strings + "]}"}, 1, 10);
}

// More situations than are kept at a time: the masks start afresh and the answer goes on.
TEST(Matcher, OutgrowsItsMasks) {
  const Tokenizer tokenizer = small::tokenizer();
  MaskCache cache(tokenizer);
  const AnswerGrammar grammar = compile({.json_schema = R"({"type": "array", "maxItems": 1, "items":
      {"type": "string", "minLength": 70000}})"});
  Matcher matcher = cache.matcher(grammar), other = matcher;
  for (const char c : std::string("[\"")) matcher.take(c);
  other = matcher;
  for (int i = 0; i < 70000; ++i) {
    matcher.take('a');
    if (i % 1000 == 999) {
      const auto allowed = matcher.allowed();
      ASSERT_TRUE(allowed.ok());
      EXPECT_TRUE(has(allowed.value(), 'a'));
      EXPECT_EQ(has(allowed.value(), '"'), i + 1 == 70000) << i;
    }
  }
  EXPECT_FALSE(has(other.allowed().value(), '"'));
  EXPECT_EQ(refused_at(matcher, tokenizer, "\"]<|return|>"), -1);
}

// Each [ opens three arrays, so that there are more ways to read the text than are followed.
TEST(Matcher, FollowsSomeWaysOfTooMany) {
  const Tokenizer tokenizer = small::tokenizer();
  MaskCache cache(tokenizer);
  const AnswerGrammar grammar =
      compile({.json_schema = R"({"anyOf": [{"type": "array", "items": {"$ref": "#"}},
      {"type": "array", "items": {"$ref": "#"}, "maxItems": 5}, {"type": "array", "items": {"$ref": "#"}, "maxItems": 6}]})"});
  const std::string text = std::string(40, '[') + std::string(40, ']') + "<|return|>";
  EXPECT_EQ(refused_at(cache.matcher(grammar), tokenizer, text), -1);
}

// The real vocabulary: how long a mask takes when its situation is new and when it is known.
TEST(TokenMasks, AreFastWithARealVocabulary) {
  SKIP_WITHOUT_O200K();
  // Processor time: other programs may keep the machine busy.
  const auto now = [] { return static_cast<double>(std::clock()) * 1e3 / CLOCKS_PER_SEC; };
  double start = now();
  MaskCache cache(*small::o200k());
  const AnswerGrammar grammar = compile({.json_schema = R"({"type": "object", "properties": {
      "name": {"type": "string"}, "city": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
      "short": {"type": "string", "maxLength": 100}, "tags": {"type": "array", "items": {"enum": ["red", "green"]}},
      "more": {"type": "object"}}, "required": ["name", "city", "age", "short", "tags", "more"]})"});
  const Matcher begin = cache.matcher(grammar);
  std::printf("  vocabulary sorted in %.0f ms\n", now() - start);
  const std::string text =
      R"({"name": "Nora Jones", "city": "Oslo", "age": 34, "short": "A sentence of some words.", "tags": ["red", "green"],)"
      R"( "more": {"a": [1, 2.5, {"b": "text of some length"}], "c": true}})";
  for (const char* round : {"new", "known"}) {
    Matcher matcher = begin;
    double total = 0, most = 0;
    const auto tokens = small::o200k()->encode(text, false);
    for (const int32_t token : tokens) {
      start = now();
      const auto allowed = matcher.allowed();
      const double time = now() - start;
      ASSERT_TRUE(allowed.ok() && has(allowed.value(), token)) << small::o200k()->token_bytes(token);
      matcher.take(token);
      total += time, most = std::max(most, time);
    }
    std::printf("  %s situations: %.3f ms a token, at most %.2f ms\n", round,
                total / static_cast<double>(tokens.size()), most);
  }
}

}  // namespace
}  // namespace moesaic::grammar
