#include "api/thinking_budget.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "api/answer_stream.h"
#include "text/small_tokenizer.h"

namespace moesaic {
namespace {

const char* const kBegun = "<|start|>user<|message|>hi<|end|><|start|>assistant";
const std::string kOut = "<|end|><|start|>assistant<|channel|>final<|message|>";
const std::string kToACall = "<|end|><|start|>assistant<|channel|>commentary to=functions";

using Texts = std::vector<std::string>;

class ThinkingBudgetTest : public testing::Test {
 protected:
  std::vector<int32_t> tokens(std::string_view text) const { return tokenizer_.encode(text, true); }

  // Returns the answer of a model that writes the first of the scripts, and the next one where it is
  // interrupted. Expects that no token is replaced where that was ruled out.
  std::string said(int budget, const std::vector<std::string>& scripts, std::string_view prompt = kBegun,
                   bool must_call = false) {
    const auto override = ThinkingBudget::make(tokenizer_, tokens(prompt), budget, must_call);
    if (!override) return "no budget";
    std::vector<int32_t> text, model = tokens(scripts[0]);
    size_t safe = 0;  // tokens that cannot be replaced
    size_t script = 0;
    bool forced = false;  // the last token was, and the next one will be
    for (size_t at = 0; forced || at < model.size();) {
      const int untouched = override->untouched();
      EXPECT_GE(untouched, 0);
      safe = std::max(safe, text.size() + static_cast<size_t>(untouched));
      forced = forced && untouched == 0;
      if (!forced && at == model.size()) break;
      const int32_t sampled = forced ? 'Q' : model[at];
      const int32_t token = override->instead_of(sampled);
      if (token == sampled) {
        ++at;
      } else if (!std::exchange(forced, true)) {
        EXPECT_GE(text.size(), safe) << tokenizer_.decode(text);
        model = ++script < scripts.size() ? tokens(scripts[script]) : std::vector<int32_t>();
        at = 0;
      }
      text.push_back(token);
      override->said(token);
    }
    text_ = text;
    return tokenizer_.decode(text);
  }
  std::string shown(int budget, const std::vector<std::string>& scripts) {
    said(budget, scripts);
    AnswerStream stream(tokenizer_, true, {});
    std::string shown;
    for (const int32_t token : text_) {
      for (const TextPiece& piece : stream.push(token, false)) shown += piece.channel[0] + piece.text;
    }
    return shown;
  }

  Tokenizer tokenizer_ = small::tokenizer();
  std::vector<int32_t> text_;  // said last
};

const std::string kThink = "<|channel|>analysis<|message|>";
const std::string kAnswer = "<|channel|>final<|message|>";

// In small_tokenizer.h's vocabulary a letter is a token.
TEST_F(ThinkingBudgetTest, TheAnswerFollowsWhereTheBudgetIsUsedUp) {
  const std::string script = kThink + "abcdefg<|end|><|start|>assistant" + kAnswer + "ok<|return|>";
  for (const std::string& after :
       Texts{"so<|return|>", "<|return|>", "", "<|end|><|start|>user<|message|>"}) {
    EXPECT_EQ(said(1, {script, after}), fmt::format("{}a{}{}", kThink, kOut, after));
    EXPECT_EQ(said(3, {script, after}), fmt::format("{}abc{}{}", kThink, kOut, after));
    EXPECT_EQ(said(6, {script, after}), fmt::format("{}abcdef{}{}", kThink, kOut, after));
  }
  for (const int budget : {7, 8, 1000, INT32_MAX}) EXPECT_EQ(said(budget, {script}), script);
}

TEST_F(ThinkingBudgetTest, AModelThatEndsItsReasoningIsLeftAlone) {
  for (const std::string& rest :
       Texts{"<|end|><|start|>assistant to=functions.f<|channel|>commentary<|message|>{}<|call|>",
             "<|return|>", "<|end|><|start|>assistant<|channel|>commentary<|message|>first<|end|>",
             "<|start|>assistant<|channel|>final<|message|>x", "<|channel|>final<|message|>x", "<|call|>",
             "<|endoftext|>"})
    EXPECT_EQ(said(3, {fmt::format("{}abc{}", kThink, rest), "so"}), fmt::format("{}abc{}", kThink, rest));
}

TEST_F(ThinkingBudgetTest, WithoutABudgetTheAnswerBeginsAtOnce) {
  EXPECT_EQ(said(0, {kThink + "abc", "so<|return|>"}), kAnswer + "so<|return|>");
  for (const std::string& answer : Texts{"<|channel|>final<|message|>so<|return|>",
                                         "<|channel|>commentary to=functions.f<|message|>{}<|call|>",
                                         " to=functions.f<|channel|>commentary<|message|>{}<|call|>",
                                         "<|channel|> to=functions.f commentary<|message|>{}<|call|>"})
    EXPECT_EQ(said(0, {answer, "other"}), answer);
  EXPECT_EQ(said(0, {"<|channel|>We need to look.<|end|>", "so<|return|>"}), kAnswer + "so<|return|>");
}

// The budget counts all analysis of an answer, and none begins again.
TEST_F(ThinkingBudgetTest, CountsAllMessages) {
  const std::string end = "<|end|><|start|>assistant";
  const std::string aside = end + "<|channel|>commentary<|message|>wait" + end;
  const std::string twice = kThink + "abc" + aside + kThink + "defg";
  EXPECT_EQ(said(7, {twice}), twice);
  EXPECT_EQ(said(5, {twice, "so"}), kThink + "abc" + aside + kThink + "de" + kOut + "so");
  EXPECT_EQ(said(3, {twice, "so"}), kThink + "abc" + aside + kAnswer + "so");
  EXPECT_EQ(said(1, {twice, "so" + end + kThink + "hm", "yes"}),
            kThink + "a" + kOut + "so" + end + kAnswer + "yes");
  EXPECT_EQ(said(0, {twice, "so" + end + kThink + "hm", "yes" + aside + kThink, "no"}),
            kAnswer + "so" + end + kAnswer + "yes" + aside + kAnswer + "no");
  // The <|end|> before it is missing.
  EXPECT_EQ(said(1, {twice, "so" + kThink + "hm", "yes"}),
            kThink + "a" + kOut + "so" + kThink + kOut + "yes");
}

TEST_F(ThinkingBudgetTest, ACallInTheAnalysisChannelIsNoReasoning) {
  const std::string call = "<|channel|>analysis to=functions.f<|message|>{\"a\": 1}<|call|>";
  EXPECT_EQ(said(3, {call}), call);
  const std::string other = " to=functions.f<|channel|>analysis<|message|>{\"a\": 1}<|call|>";
  EXPECT_EQ(said(3, {other}), other);
}

TEST_F(ThinkingBudgetTest, ACharacterIsCompleted) {
  const std::string day = "\xE6\x97\xA5", face = "\xF0\x9F\x98\x80";  // 2 and 4 tokens
  for (const std::string& character : Texts{day, face}) {
    const std::vector<std::string> scripts = {fmt::format("{}a{}b", kThink, character), "ok<|return|>"};
    EXPECT_EQ(shown(1, scripts), "aa" + std::string("fofk"));
    EXPECT_EQ(shown(2, scripts), "aa" + std::string("a") + character + "fofk");
    EXPECT_EQ(shown(5, {scripts[0] + "<|return|>", "ok"}).substr(0, 3 + character.size()), "aaa" + character);
  }
  // One that never ends.
  const std::string begun = "\xF0\x9F\xF0\x9F\xF0\x9F\xF0\x9F\xF0\x9F";
  said(1, {kThink + begun, "ok"});
  EXPECT_LE(text_.size(), tokens(kThink).size() + 1 + 3 + tokens(kOut).size() + 2);
}

TEST_F(ThinkingBudgetTest, TheWayLeadsToACallWhereOneIsDemanded) {
  EXPECT_EQ(said(2, {kThink + "abc", ".f"}, kBegun, true), kThink + "ab" + kToACall + ".f");
  EXPECT_EQ(said(0, {kThink + "abc", ".f"}, kBegun, true), "<|channel|>commentary to=functions.f");
}

TEST_F(ThinkingBudgetTest, TheSampledTokenMayStandAfterAll) {
  const auto override = ThinkingBudget::make(tokenizer_, tokens(kBegun), 1, false);
  for (const int32_t token : tokens(kThink + "a")) override->said(token);
  const int32_t end = tokens("<|end|>")[0];
  EXPECT_EQ(override->instead_of('b'), end);
  override->said('b');  // a grammar would have it so
  EXPECT_EQ(override->instead_of('c'), end);
  override->said(end);
  EXPECT_EQ(override->instead_of('c'), tokens("<|start|>")[0]);
}

TEST_F(ThinkingBudgetTest, GoesOnFromThePrompt) {
  const std::string begun(kBegun);
  EXPECT_EQ(said(2, {"abcd", "so"}, begun + kThink + "before"), "ab" + kOut + "so");
  EXPECT_EQ(said(0, {"abcd", "so"}, begun + kThink + "before"), kOut + "so");
  EXPECT_EQ(said(0, {"analysis<|message|>abcd", "so"}, begun + "<|channel|>"),
            "analysis<|message|>" + kOut + "so");
  EXPECT_EQ(said(0, {"abcd", "so"}, begun + kAnswer), "abcd");
  EXPECT_EQ(said(0, {"abcd", "so"}, "<|start|>user<|message|>"), "abcd");
  EXPECT_EQ(said(0, {kThink, "so"}, "plain text"), "no budget");
  EXPECT_EQ(said(0, {kThink, "so"}, ""), "no budget");
}

// Whatever a model writes: no more reasoning than the budget, and no token replaced that was called safe.
TEST_F(ThinkingBudgetTest, AnyTokens) {
  std::mt19937 rng(5);
  const std::vector<std::string> words = {
      "<|start|>", "<|end|>",  "<|channel|>", "<|message|>", "<|return|>",      "<|call|>", "<|constrain|>",
      "assistant", "analysis", "final",       "commentary",  " to=functions.f", "x",        "\xE6",
      "\xF0\x9F",  "{}",       "user",        kThink,        kAnswer,           kOut};
  for (int round = 0; round < 5'000; ++round) {
    std::vector<std::string> scripts(1 + rng() % 3);
    for (std::string& script : scripts) {
      for (uint32_t i = rng() % 20; i > 0; --i) script += words[rng() % words.size()];
    }
    if (rng() % 2 == 0) scripts[0] = kThink + scripts[0];
    const int budget = static_cast<int>(rng() % 6);
    said(budget, scripts, kBegun, rng() % 8 == 0);
    HarmonyParser parser(tokenizer_);
    int thought = 0;
    for (const int32_t token : text_) {
      const bool reasoned = parser.reasons();
      parser.push(token);
      thought += reasoned && parser.reasons() ? 1 : 0;
    }
    ASSERT_LE(thought, budget + 3) << tokenizer_.decode(text_);
  }
}

}  // namespace
}  // namespace moesaic
