#include "grammar/token_masks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
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

// A text so far, followed by definition.
struct Text {
  explicit Text(const CompiledGrammar& g)
      : machine(g.automaton), at(machine.enter(g.rule, kBottom).value()) {}

  Configurations behind(std::string_view string) {
    Configurations to = at;
    for (const char c : string) to = machine.step(to, static_cast<uint8_t>(c)).value();
    return to;
  }
  // A token may come where the automaton follows each of its bytes.
  bool may_come(const TokenTrie& trie, int32_t token) {
    const auto strings = trie.strings(token);
    return std::ranges::any_of(strings, [&](const auto& string) { return !behind(string).empty(); });
  }
  void take(const TokenTrie& trie, int32_t token) {
    for (const std::string& string : trie.strings(token)) {
      const Configurations to = behind(string);
      if (to.empty()) continue;
      at = to;
      return;
    }
  }

  Machine machine;
  Configurations at;
};

// Random answers, which go on in turn; at each of their steps every token's bit is compared with the
// definition.
void compare(const AnswerFormat& format, uint32_t seed, int steps = 60, int answers = 1,
             const Tokenizer& tokenizer = small::tokenizer()) {
  const TokenTrie trie(tokenizer);
  const AnswerGrammar grammar = compile(format);
  MaskCache cache(tokenizer);
  std::mt19937 rng(seed);
  struct Answer {
    Matcher matcher;
    Text text;
    bool ended = false;
  };
  std::vector<Answer> all;
  for (int i = 0; i < answers; ++i) all.push_back({cache.matcher(grammar), Text(*grammar.compiled())});
  for (int step = 0; step < steps * answers; ++step) {
    auto& [matcher, text, ended] = all[rng() % all.size()];
    if (ended) continue;
    const auto allowed = matcher.allowed();
    if (ended = !allowed.ok(); ended) continue;
    std::vector<int32_t> tokens;
    for (int32_t token = 0; token < tokenizer.vocab_size(); ++token) {
      EXPECT_EQ(has(allowed.value(), token), text.may_come(trie, token)) << step << " " << token;
      if (has(allowed.value(), token)) tokens.push_back(token);
    }
    const int32_t token = tokens[rng() % tokens.size()];
    text.take(trie, token);
    matcher.take(token);
    ended = tokenizer.is_special(token) && !format.chat;
  }
}

// A vocabulary with many tokens of several characters, quotes among them.
Tokenizer wide_tokenizer(int words) {
  const std::vector<std::string> characters = {"a", "b", "c", "\"", "\\", "\xC3\xA9", " ", "]", ","};
  nlohmann::json json = small::tokenizer_json();
  std::mt19937 rng(1);
  for (int i = 0; i < words; ++i) {
    std::string word;
    for (auto length = 2 + rng() % 11; length > 0; --length)
      word += characters[rng() % (rng() % 4 == 0 ? characters.size() : 3)];
    json["model"]["vocab"].emplace(small::spell(word), 400 + i);
  }
  return Tokenizer::from_hf_json_text(json.dump(), "wide").value();
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

// One answer's mask begins from what another answer's count has found.
TEST(TokenMasks, OfOtherCounts) {
  const Tokenizer tokenizer = wide_tokenizer(1000);
  for (
      const char* schema :
      {R"({"type": "string", "minLength": 15, "maxLength": 40})", R"({"type": "string", "maxLength": 25})",
       R"({"type": "string", "minLength": 30})",
       R"({"items": {"type": "string", "minLength": 3, "maxLength": 12}, "minItems": 2, "maxItems": 5})",
       R"({"anyOf": [{"type": "string", "maxLength": 20}, {"type": "string", "minLength": 12, "maxLength": 30}]})"})
    compare({.json_schema = schema}, 1, 30, 4, tokenizer);
  for (const char* gbnf :
       {R"(root ::= ("a" | "é" | "b"? "\""){5,20} "b")", R"(root ::= (("a" | "b"){2,4} " "){3,6})",
        R"(root ::= ("a" | "b" "c"*){6,20} ([ab]{5,10} | "\""))"})
    compare({.gbnf = gbnf}, 1, 30, 4, tokenizer);
}

// Another count costs a look at the tokens that reach a limit.
TEST(TokenMasks, OfOtherCountsCostLittle) {
  const Tokenizer tokenizer = wide_tokenizer(4000);
  MaskCache cache(tokenizer);
  Matcher matcher =
      cache.matcher(compile({.json_schema = R"({"type": "string", "minLength": 50, "maxLength": 100})"}));
  matcher.take('"');
  const auto cost = [&] {
    const uint64_t before = matcher.masks() == nullptr ? 0 : matcher.masks()->work();
    EXPECT_TRUE(matcher.allowed().ok());
    return matcher.masks()->work() - before;
  };
  const uint64_t first = cost();
  uint64_t others = 0;
  for (int i = 0; i < 99; ++i) {
    matcher.take('a');
    others += cost();
  }
  EXPECT_LT(others, 20 * first);
}

// Answers that come to the same place make its mask once, however their turns fall.
TEST(TokenMasks, AreMadeTogether) {
  const Tokenizer tokenizer = wide_tokenizer(8000);
  const AnswerGrammar grammar = compile({.json_schema = R"({"type": "string", "minLength": 50})"});
  const auto work = [&](size_t answers) {
    MaskCache cache(tokenizer);
    std::vector<Matcher> all(answers, cache.matcher(grammar));
    EXPECT_TRUE(all[0].allowed().ok());
    const uint64_t before = all[0].masks()->work();
    for (Matcher& matcher : all) matcher.take('"');
    for (size_t done = 0; done < answers;) {
      done = 0;
      for (Matcher& matcher : all) done += matcher.allowed(Effort::kQuick).has_value() ? 1 : 0;
    }
    return all[0].masks()->work() - before;
  };
  const uint64_t alone = work(1);
  EXPECT_GT(alone, 2 * kQuickWork);
  EXPECT_LT(work(8), alone + alone / 4);
}

TEST(TokenMasks, OfAChat) {
  for (uint32_t seed = 0; seed < 8; ++seed)
    compare({.chat = true, .json_schema = kSchema, .functions = {{"f", R"({"type": "object"})"}, {"g", ""}}},
            seed);
}

// Whatever a mask may cost, each token of a single byte that may come stays, and none comes that may not.
void expect_cut_masks_go_on(const std::string& schema, const std::string& text) {
  const Tokenizer tokenizer = wide_tokenizer(300);
  const TokenTrie trie(tokenizer);
  const AnswerGrammar grammar = compile({.json_schema = schema});
  const CompiledGrammar& g = *grammar.compiled();
  for (const uint64_t work : {0, 1, 10, 20, 40, 100}) {
    TokenMasks masks(g.automaton, g.rule, trie, work);
    TokenMasks::Situation at = masks.start().value();
    Text written(g);
    for (size_t i = 0; i + 1 < text.size(); ++i) {
      TokenMasks::Mask made(at);
      masks.begin(Effort::kSlice);
      while (masks.advance(made) != Progress::kDone) masks.begin(Effort::kSlice);
      const auto mask = made.tokens();
      bool any = false;
      for (int32_t token = 0; token < tokenizer.vocab_size(); ++token) {
        const bool may = written.may_come(trie, token);
        any = any || has(mask, token);
        EXPECT_TRUE(may || !has(mask, token)) << work << " " << i << " " << token;
        EXPECT_TRUE(!may || token >= 256 || has(mask, token)) << work << " " << i << " " << token;
      }
      EXPECT_TRUE(any);
      ASSERT_EQ(masks.after(at, text.substr(i, 1), at), Progress::kDone);
      written.at = written.behind(text.substr(i, 1));
    }
  }
}

TEST(TokenMasks, ThatAreCutGoOn) {
  expect_cut_masks_go_on(kSchema, R"({"hello": "aaaa", "n": [)");
  expect_cut_masks_go_on(R"({"type": "string", "minLength": 20, "maxLength": 30})",
                         '"' + std::string(30, 'a') + '"');
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
  uint64_t work[2] = {};  // the masks' work until the end of a round
  for (const bool known : {false, true}) {
    Matcher matcher = begin;
    double total = 0, most = 0;
    const auto tokens = small::o200k()->encode(text, false);
    for (const int32_t token : tokens) {
      start = now();
      const auto allowed = matcher.allowed();
      const double time = now() - start;
      ASSERT_TRUE(allowed.ok() && has(allowed.value(), token)) << small::o200k()->token_bytes(token);
      work[known ? 1 : 0] = matcher.masks()->work();
      matcher.take(token);
      total += time, most = std::max(most, time);
    }
    std::printf("  %s situations: %.3f ms a token, at most %.2f ms\n", known ? "known" : "new",
                total / static_cast<double>(tokens.size()), most);
  }
  EXPECT_LT(work[0], 10'000'000u);
  EXPECT_EQ(work[1], work[0]);  // nothing was made again
}

}  // namespace
}  // namespace moesaic::grammar
