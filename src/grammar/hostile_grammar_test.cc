// Forms of answers that are made to cost much: each is refused, or followed within a bound of work and memory
// by token, or ends its own answer with one line.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>

#include "grammar/mask_cache.h"
#include "grammar/mask_cost.h"
#include "grammar/schema_matches.h"
#include "text/small_tokenizer.h"

namespace moesaic::grammar {
namespace {

struct Cost : MaskCost {
  int tokens = 0;
  std::string failure;
};

// Allowed tokens that are not special, so that the answer goes on where it can.
int32_t any_text(std::span<const uint64_t> mask, const Tokenizer& tokenizer, std::mt19937& rng) {
  std::vector<int32_t> tokens;
  for (int32_t t = 0; t < tokenizer.vocab_size(); ++t)
    if ((mask[t / 64] >> (t % 64) & 1) != 0 && !tokenizer.is_special(t)) tokens.push_back(t);
  return tokens.empty() ? -1 : tokens[rng() % tokens.size()];
}

Cost cost_of(const AnswerFormat& format, const Tokenizer& tokenizer, int tokens,
             const std::string& begin = "") {
  const auto grammar = AnswerGrammar::compile(format);
  Cost cost;
  cost.failure = grammar.status().message();
  if (!grammar.ok()) return cost;
  MaskCache cache(tokenizer);
  Matcher matcher = cache.matcher(grammar.value());
  std::mt19937 rng(1);
  const auto said = tokenizer.encode(begin, false);
  for (; cost.tokens < tokens; ++cost.tokens) {
    const auto mask = next_mask(matcher, cost);
    if (!mask.ok()) {
      cost.failure = mask.status().message();
      break;
    }
    const int32_t next = cost.tokens < static_cast<int>(said.size()) ? said[cost.tokens] : 0;
    const bool may = (mask.value()[next / 64] >> (next % 64) & 1) != 0;
    const int32_t token = may ? next : any_text(mask.value(), tokenizer, rng);
    if (token < 0) break;
    matcher.take(token);
  }
  return cost;
}

std::string nested_empty(int rules, const std::string& last) {
  std::string grammar = "root ::= [a-z ]{60} r0 \"x\"\n";
  for (int i = 0; i < rules; ++i) grammar += fmt::format("r{} ::= r{} r{}\n", i, i + 1, i + 1);
  return grammar + fmt::format("r{} ::= {}\n", rules, last);
}

std::string repeated(int times, const std::string& first, const std::string& other) {
  std::string text = first;
  for (int i = 1; i < times; ++i) text += other;
  return text;
}

const char* const kTooCostly = "too costly to follow";

// Nested rules that may all be empty, once 2^n ways to read nothing: facts of the automaton, not ways.
TEST(HostileGrammar, NestedEmptyRulesCostNothing) {
  const Tokenizer tokenizer = small::tokenizer();
  for (const char* last : {"\"\"", "\"z\"?", "\"z\"*", "(\"\" | \"\")"}) {
    const Cost cost = cost_of({.gbnf = nested_empty(40, last)}, tokenizer, 100, std::string(60, 'q') + "x");
    EXPECT_EQ(cost.failure, "") << last;
    EXPECT_GE(cost.tokens, 60) << last;
    EXPECT_LE(cost.token, 20'000u) << last;
    EXPECT_LE(cost.bytes, 1u << 20) << last;
  }
  const auto grammar = AnswerGrammar::compile({.gbnf = nested_empty(40, "\"z\"?")});
  ASSERT_TRUE(grammar.ok());
  for (const int z : {0, 1, 500})
    EXPECT_TRUE(matches(grammar.value(), std::string(60, 'q') + std::string(z, 'z') + "x"));
  EXPECT_FALSE(matches(grammar.value(), std::string(60, 'q') + "zy"));
}

TEST(HostileGrammar, EqualAlternativesAreOne) {
  const Tokenizer tokenizer = small::tokenizer();
  for (const std::string& form : {"root ::= (" + repeated(24'000, "\"a\"", "|\"\"") + ")*",
                                  "root ::= (" + repeated(12'000, "[a-z]", "|e") + ")*\ne ::= \"\"",
                                  "root ::= (" + repeated(12'000, "[a-z]", "|\"a\"") + ")*"}) {
    const Cost cost = cost_of({.gbnf = form}, tokenizer, 200);
    EXPECT_EQ(cost.failure, "") << form.substr(0, 40);
    EXPECT_LE(cost.token, 5'000u) << form.substr(0, 40);
  }
}

// In a text that is nested deeper and deeper, the last token costs as much as the first ones.
TEST(HostileGrammar, NestingCostsTheSameAtAnyDepth) {
  const Tokenizer tokenizer = small::tokenizer();
  const AnswerFormat brackets{.json_schema = "{}"},
      counted{.json_schema = R"({"items": {"$ref": "#"}, "maxItems": 1000, "type": "array"})"},
      recursion{.gbnf = "root ::= [a-z ] root \"1\" | \"~\""},
      two{.gbnf = "root ::= [a-z ] root \"1\" | [a-z ] root \"2\" | \"~\""};
  for (const auto& [format, piece] :
       {std::pair{brackets, "["}, {counted, "["}, {recursion, "q"}, {two, "q"}}) {
    const Cost few = cost_of(format, tokenizer, 200, repeated(200, piece, piece)),
               many = cost_of(format, tokenizer, 5000, repeated(5000, piece, piece));
    EXPECT_EQ(many.failure, "");
    EXPECT_EQ(many.tokens, 5000);
    EXPECT_LE(many.token, few.token + 1000) << piece;
  }
  const Cost deep = cost_of(brackets, tokenizer, 40'000, repeated(40'000, "[", "["));
  EXPECT_NE(deep.failure.find("nests too deep"), std::string::npos);
  EXPECT_GT(deep.tokens, 32'000);
  EXPECT_TRUE(deep.within_bounds());
}

// A grammar that is ambiguous beyond any use ends with a line; before that it keeps to the bounds.
TEST(HostileGrammar, AmbiguousOnesKeepToTheirBounds) {
  const Tokenizer tokenizer = small::tokenizer();
  std::string chain = "root ::= ([a-z] c0)*\n", wide = "root ::= \"~\"";
  for (int i = 0; i < 1900; ++i) chain += fmt::format("c{} ::= c{} c{}|\"\"\n", i, i + 1, i + 1);
  for (int i = 0; i < 400; ++i) wide += fmt::format("|[a-z ]{{{},{}}} \"{}\"", i, 5000 + i, i);
  const std::vector<std::pair<AnswerFormat, bool>> forms = {
      {{.gbnf = "root ::= [a-z] root root | [a-z]"}, false},
      {{.gbnf = "root ::= [a-z] root root root | [a-z] root root | [a-z]"}, true},
      {{.gbnf = "root ::= s\ns ::= [a-z] (s s)? | [a-z] s [a-z]? | [a-z]"}, true},
      {{.gbnf = "root ::= " + repeated(20'000, "[a-z]?", " [a-z]?")}, true},
      {{.gbnf = chain + "c1900 ::= \"b\""}, true},
      {{.gbnf = "root ::= ((([a-z]{1,50}){1,50}){1,50}){1,50}"}, true},
      {{.gbnf = "root ::= [a-z ] root e | \"~\"\ne ::= \"1\"?"}, false},
      {{.gbnf = "root ::= " + repeated(4'000, "[a-z]?", " [a-z]?")}, false},
      {{.gbnf = wide}, false},
      {{.gbnf = "root ::= ([a-z] | [a-z] [a-z] | [a-z] [a-z] [a-z]){0,10000}"}, false},
      {{.gbnf = "root ::= \"q\" root \"q\" | \"b\" root \"b\" | [qb]?"}, false},
      {{.regex = "(.*a){20}.*(.*b){5}"}, false},
      {{.regex = "(q|b|qb)*(q|b)*c?(q?b?){30}"}, false},
      {{.json_schema = R"({"pattern": "^(.{1,20}x){1,20}"})"}, false}};
  for (const auto& [format, fails] : forms) {
    const std::string begin = format.json_schema.empty() ? "" : "\"",
                      form = format.gbnf.substr(0, 60) + format.regex;
    const Cost cost = cost_of(format, tokenizer, 400, begin + std::string(400, 'q'));
    EXPECT_TRUE(cost.within_bounds()) << form << " " << cost.slice << " " << cost.token << " " << cost.bytes;
    EXPECT_EQ(cost.failure.find(kTooCostly) != std::string::npos, fails) << form << " " << cost.failure;
    EXPECT_TRUE(fails || cost.tokens > 20) << form << " " << cost.tokens;
  }
}

// Many grammars at once divide the memory for masks; a single one has all that it may keep.
TEST(HostileGrammar, ManyGrammarsShareTheMemoryForMasks) {
  const Tokenizer tokenizer = small::tokenizer();
  const auto follow = [](Matcher& matcher) {
    for (int i = 0; i < 600; ++i) {
      const auto allowed = matcher.allowed();
      ASSERT_TRUE(allowed.ok()) << allowed.status().message();
      matcher.take('q');
    }
  };
  const auto form = [](int number) {  // a mask of its own at each of 600 places
    std::string gbnf = "root ::= ";
    for (int i = 0; i < 600; ++i)
      gbnf += fmt::format("[a-z{}] ", static_cast<char>('A' + (i * 7 + number) % 26));
    return AnswerGrammar::compile({.gbnf = gbnf + fmt::format("\"{}\"", number)}).value();
  };
  MaskCache cache(tokenizer);
  Matcher alone = cache.matcher(form(0));
  follow(alone);
  EXPECT_GT(alone.masks()->kept_masks(), 256U);
  constexpr int kMany = 400;
  std::vector<Matcher> many;
  for (int i = 1; i <= kMany; ++i) {
    many.push_back(cache.matcher(form(i)));
    ASSERT_TRUE(many.back().allowed().ok());
  }
  follow(many.back());
  EXPECT_LE(many.back().masks()->kept_masks(), 4 * TokenMasks::kAllKept / kMany);
  many.clear();
  Matcher again = cache.matcher(form(kMany + 1));
  follow(again);
  EXPECT_GT(again.masks()->kept_masks(), 256U);
}

// Many tokens of a form that costs a slice each, still to be taken.
std::shared_ptr<NextMask> costly_mask(MaskCache& cache, int number, const std::string& client) {
  const std::string form = "root ::= " + repeated(3000 + number, "[a-z]?", " [a-z]?");
  auto mask =
      std::make_shared<NextMask>(cache.matcher(AnswerGrammar::compile({.gbnf = form}).value()), client);
  for (int i = 0; i < 500; ++i) mask->matcher.take('q');
  return mask;
}

// A client with costly masks delays another one's by slices, and an end of the thread not at all.
TEST(MaskThreads, ClientsTakeTurnsBySlices) {
  const Tokenizer tokenizer = small::tokenizer();
  MaskCache cache(tokenizer);
  std::vector<std::shared_ptr<NextMask>> costly;
  const auto other =
      std::make_shared<NextMask>(cache.matcher(AnswerGrammar::compile({.json_schema = "{}"}).value()), "b");
  {
    MaskThreads threads(1);
    for (int i = 0; i < 4; ++i) threads.compute(costly.emplace_back(costly_mask(cache, i, "a")));
    threads.compute(other);
    threads.wait_until(*other, std::chrono::steady_clock::now() + std::chrono::minutes(1));
    EXPECT_TRUE(other->ready);
    EXPECT_TRUE(other->status.ok());
    for (const auto& mask : costly) EXPECT_FALSE(mask->ready);
    costly[0]->abandoned = true;
  }
  for (const auto& mask : costly) EXPECT_FALSE(mask->ready);
}

// Two answers of one grammar: what one works out is not held back from the other.
TEST(MaskThreads, ClientsOfOneGrammarTakeTurns) {
  const Tokenizer tokenizer = small::tokenizer();
  MaskCache cache(tokenizer);
  const auto costly = costly_mask(cache, 0, "a");
  const auto other = std::make_shared<NextMask>(costly->matcher, "b");
  other->matcher = cache.matcher(
      AnswerGrammar::compile({.gbnf = "root ::= " + repeated(3000, "[a-z]?", " [a-z]?")}).value());
  MaskThreads threads(1);
  threads.compute(costly);
  threads.compute(other);
  threads.wait_until(*other, std::chrono::steady_clock::now() + std::chrono::minutes(1));
  EXPECT_TRUE(other->ready);
  EXPECT_FALSE(costly->ready) << costly->status.message();
}

// Several threads find the masks that one thread finds, also those of one grammar.
TEST(MaskThreads, SeveralFindTheSame) {
  const Tokenizer tokenizer = small::tokenizer();
  MaskCache cache(tokenizer);
  const auto form = [](int number) {
    return AnswerGrammar::compile({.gbnf = "root ::= " + repeated(60 + number, "[a-z]?", " [a-z ]?")})
        .value();
  };
  std::vector<std::shared_ptr<NextMask>> masks;
  {
    MaskThreads threads(3);
    for (int i = 0; i < 24; ++i) {
      auto mask = std::make_shared<NextMask>(cache.matcher(form(i % 5)), fmt::format("client {}", i % 4));
      for (int taken = 0; taken < i; ++taken) mask->matcher.take('q');
      threads.compute(masks.emplace_back(std::move(mask)));
    }
    for (const auto& mask : masks)
      threads.wait_until(*mask, std::chrono::steady_clock::now() + std::chrono::minutes(1));
  }
  for (int i = 0; i < 24; ++i) {
    const NextMask& mask = *masks[static_cast<size_t>(i)];
    ASSERT_TRUE(mask.ready && mask.status.ok()) << i << mask.status.message();
    MaskCache fresh(tokenizer);
    Matcher alone = fresh.matcher(form(i % 5));
    for (int taken = 0; taken < i; ++taken) alone.take('q');
    const auto expected = alone.allowed();
    ASSERT_TRUE(expected.ok());
    EXPECT_TRUE(std::ranges::equal(mask.allowed, expected.value())) << i;
  }
}

}  // namespace
}  // namespace moesaic::grammar
