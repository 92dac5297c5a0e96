// Tokens that files add to the vocabulary as text. Expected tokens are those of huggingface/tokenizers 0.22
// for the same file (tools/tokenizer/compare_added_tokens.py compares random ones).
#include <gtest/gtest.h>

#include <algorithm>

#include "text/detokenizer.h"
#include "text/harmony_parser.h"
#include "text/small_tokenizer.h"

namespace moesaic {
namespace {

using Ids = std::vector<int32_t>;
using AddedJson = nlohmann::json;

AddedJson added(int id, const std::string& content, bool special, bool normalized) {
  return {{"id", id},        {"content", content}, {"single_word", false},    {"lstrip", false},
          {"rstrip", false}, {"special", special}, {"normalized", normalized}};
}

AddedJson with_added(const std::vector<AddedJson>& tokens) {
  AddedJson file = small::tokenizer_json();
  for (const AddedJson& token : tokens) file["added_tokens"].push_back(token);
  return file;
}

Tokenizer make(const std::vector<AddedJson>& tokens) {
  Result<Tokenizer> made = Tokenizer::from_hf_json_text(with_added(tokens).dump(), "added");
  EXPECT_TRUE(made.ok()) << made.status().message();
  return std::move(made).value();
}

TEST(AddedTokens, AreFoundWhetherSpecialOnesAreOrNot) {
  const Tokenizer tokenizer = make({added(400, "<tool>", false, true), added(401, "<hidden>", true, false)});
  for (const bool special : {true, false})
    EXPECT_EQ(tokenizer.encode("a<tool>a", special), (Ids{'a', 400, 'a'})) << special;
  EXPECT_EQ(tokenizer.encode("<tool><hidden>", true), (Ids{400, 401}));
  EXPECT_EQ(tokenizer.encode("<tool><hidden>", false), (Ids{400, '<', 'h', 'i', 'd', 'd', 'e', 'n', '>'}));
}

TEST(AddedTokens, AreText) {
  const Tokenizer tokenizer = make({added(400, "<tool>", false, true)});
  EXPECT_FALSE(tokenizer.is_special(400));
  EXPECT_EQ(tokenizer.special_id("<tool>"), std::nullopt);
  EXPECT_EQ(tokenizer.token_bytes(400), "<tool>");
  EXPECT_EQ(tokenizer.decode(Ids{'a', 400}), "a<tool>");
  StreamDecoder stream(tokenizer);
  EXPECT_EQ(stream.push(400), "<tool>");
}

TEST(AddedTokens, AreTextOfAMessage) {
  const Tokenizer tokenizer = make({added(400, "<tool>", false, true)});
  HarmonyParser parser(tokenizer);
  std::string text;
  for (const int32_t token : tokenizer.encode("<|channel|>final<|message|>a<tool>b<|return|>", true))
    for (const HarmonyEvent& e : parser.push(token))
      if (e.kind == HarmonyEvent::Kind::kText) text += e.message.text;
  EXPECT_EQ(text, "a<tool>b");
}

// The leftmost, then the longest; "normalized" ones only in what the others leave, so that "aab" is cut by
// "ab" although it begins earlier.
TEST(AddedTokens, LeftmostThenLongest) {
  const Tokenizer tokenizer =
      make({added(400, "ab", false, false), added(401, "abc", false, false), added(402, "aab", false, true),
            added(403, "bcd", false, false), added(404, "xx", false, true)});
  EXPECT_EQ(tokenizer.encode("abcd", false), (Ids{401, 'd'}));
  EXPECT_EQ(tokenizer.encode("aab", false), (Ids{'a', 400}));
  EXPECT_EQ(tokenizer.encode("xbcdxx", false), (Ids{'x', 403, 404}));
  EXPECT_EQ(tokenizer.encode("xxx", false), (Ids{404, 'x'}));
}

// A special token that stays text hides names within it that are looked for together with it, but not late
// ones.
TEST(AddedTokens, WithinTheNameOfASpecialOne) {
  for (const bool normalized : {true, false}) {
    const Tokenizer tokenizer = make({added(400, "end", false, normalized)});
    EXPECT_EQ(tokenizer.encode("<|end|>", true), Ids{306});
    EXPECT_EQ(tokenizer.encode("<|end|>", false),
              normalized ? (Ids{'<', '|', 400, '|', '>'}) : (Ids{'<', '|', 'e', 'n', 'd', '|', '>'}));
    EXPECT_EQ(tokenizer.encode("the end", false), (Ids{'t', 256, ' ', 400}));
  }
}

// The split pattern does not see them: " w" is a merge, and the space before the token is not joined to it.
TEST(AddedTokens, ThePatternDoesNotSeeThem) {
  const Tokenizer tokenizer = make({added(400, "world", false, true)});
  EXPECT_EQ(tokenizer.encode("hello world", false), (Ids{259, ' ', 400}));
  EXPECT_EQ(tokenizer.encode("hello worlds", false), (Ids{259, ' ', 400, 's'}));
}

// A token of the vocabulary that is listed as an added one is still what merges make.
TEST(AddedTokens, OfTheVocabulary) {
  const Tokenizer tokenizer = make({added(258, "hell", false, true)});
  EXPECT_EQ(tokenizer.encode("hell hello", false), (Ids{258, ' ', 258, 'o'}));
  EXPECT_EQ(tokenizer.vocab_size(), 309);
}

// A token of the vocabulary whose name is another one, or special, now: text is not joined to it.
TEST(AddedTokens, InThePlaceOfOneThatMergesMake) {
  const int joined = 261;  // "aa", which is in a merge of two more
  for (const bool special : {true, false}) {
    for (const std::string& name : {std::string("<|x|>"), std::string(208, 'x'), std::string("aa")}) {
      const Tokenizer tokenizer = make({added(joined, name, special, false)});
      for (const size_t size : {2, 4, 20001}) {
        const std::string text(size, 'a');
        const Ids ids = tokenizer.encode(text, false);
        EXPECT_EQ(tokenizer.decode(ids), text) << name << size;
        if (special) {
          EXPECT_EQ(std::ranges::count(ids, joined), 0) << name << size;
        }
      }
    }
  }
}

// A file that lists harmony's own tokens as text would let a user's text write them.
TEST(AddedTokens, HarmonysStaySpecial) {
  AddedJson file = small::tokenizer_json();
  for (AddedJson& token : file["added_tokens"]) token["special"] = false, token["normalized"] = true;
  const auto tokenizer = Tokenizer::from_hf_json_text(file.dump(), "f");
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_TRUE(tokenizer->is_special(305));
  EXPECT_EQ(tokenizer->encode("<|start|>", true), Ids{305});
  EXPECT_EQ(tokenizer->encode("<|start|>", false).size(), 9u);
  EXPECT_EQ(tokenizer->stop_tokens(), (Ids{302, 308, 301}));
}

TEST(AddedTokens, WhatIsNotReproducedIsRefusedByName) {
  for (const char* flag : {"lstrip", "rstrip", "single_word"}) {
    AddedJson token = added(400, "<tool>", false, true);
    token[flag] = true;
    const Status status = Tokenizer::from_hf_json_text(with_added({token}).dump(), "f").status();
    EXPECT_NE(status.message().find("'<tool>'"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(flag), std::string::npos) << status.message();
  }
  for (const char* flag : {"lstrip", "rstrip", "single_word", "special", "normalized"}) {
    AddedJson token = added(400, "<tool>", false, true);
    token[flag] = "yes";
    const Status status = Tokenizer::from_hf_json_text(with_added({token}).dump(), "f").status();
    EXPECT_NE(status.message().find(flag), std::string::npos) << status.message();
  }
}

TEST(AddedTokens, OfGguf) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(small::spell(byte));
  std::vector<int32_t> types(256, 1);
  const auto add = [&](const char* name, int type) { tokens.emplace_back(name), types.push_back(type); };
  add("<|end|>", 3), add("<|return|>", 3), add("<tool>", 4), add("<|start|>", 4);
  const auto tokenizer = Tokenizer::from_gguf(tokens, {}, types, -1, 256);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(tokenizer->encode("a<tool>", false), (Ids{'a', 258}));
  EXPECT_FALSE(tokenizer->is_special(258));
  EXPECT_EQ(tokenizer->decode(Ids{258}), "<tool>");
  EXPECT_TRUE(tokenizer->is_special(259));
  EXPECT_EQ(tokenizer->stop_tokens(), Ids{257});  // and not the file's end of sequence, <|end|>
}

// 60,000 names and a megabyte of text: no clock, a quadratic step would exceed ctest's limit of time.
TEST(AddedTokens, ManyNames) {
  AddedJson file = small::tokenizer_json();
  for (int i = 0; i < 60'000; ++i)
    file["added_tokens"].push_back(added(400 + i, "<a" + std::to_string(i) + ">", i % 2 == 0, i % 3 == 0));
  for (int i = 1; i < 250; ++i)
    file["added_tokens"].push_back(added(70'000 + i, std::string(i, 'b') + "c", false, false));
  const auto tokenizer = Tokenizer::from_hf_json_text(file.dump(), "f");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  std::string text;
  for (int i = 0; text.size() < 1 << 19; ++i) text += "<a" + std::to_string(i % 60'000) + "> ";
  text += std::string(1 << 16, 'b');
  const auto ids = tokenizer->try_encode(text, true);
  ASSERT_TRUE(ids.ok()) << ids.status().message();
  EXPECT_EQ(ids.value()[0], 400);
  EXPECT_EQ(tokenizer->decode(ids.value()), text);
}

TEST(AddedTokens, ManyMerges) {
  AddedJson file = small::tokenizer_json();
  auto &vocab = file["model"]["vocab"], &merges = file["model"]["merges"];
  const auto add = [&](const std::string& left, const std::string& right) {
    if (!vocab.contains(left + right)) vocab[left + right] = 400 + merges.size();
    merges.push_back({left, right});
  };
  for (int a = 'A'; a < 'A' + 42; ++a)
    for (int b = 'A'; b < 'A' + 42; ++b)
      add(std::string(1, static_cast<char>(a)), std::string(1, static_cast<char>(b)));
  for (int i = 0; i < 42 * 42 * 42; ++i)
    add({static_cast<char>('A' + i / 42 / 42), static_cast<char>('A' + i / 42 % 42)},
        std::string(1, static_cast<char>('A' + i % 42)));
  ASSERT_GT(merges.size(), 70'000u);
  const auto tokenizer = Tokenizer::from_hf_json_text(file.dump(), "f");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(tokenizer->encode("ABC", false).size(), 1u);
}

}  // namespace
}  // namespace moesaic
