#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/file_cache.h"
#include "text/limited_json.h"
#include "text/small_tokenizer.h"

namespace moesaic {
namespace {

using Ids = std::vector<int32_t>;
using nlohmann::json;

Status load_status(const json& file) { return Tokenizer::from_hf_json_text(file.dump(), "file").status(); }

// The definition of byte-pair encoding, in quadratic time: join the lowest rank, leftmost first.
Ids naive_bpe(const std::string& piece) {
  std::vector<std::string> parts;
  for (const char c : piece) parts.emplace_back(1, c);
  for (const auto* best = &small::kMerges[0]; best != nullptr;) {
    best = nullptr;
    size_t at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto rank =
          std::find(small::kMerges.begin(), small::kMerges.end(), std::pair(parts[i], parts[i + 1]));
      if (rank != small::kMerges.end() && (best == nullptr || &*rank < best)) best = &*rank, at = i;
    }
    if (best == nullptr) break;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + at + 1);
  }
  Ids ids;
  for (const std::string& part : parts) {
    const auto whole = std::find_if(small::kMerges.begin(), small::kMerges.end(),
                                    [&](const auto& merge) { return merge.first + merge.second == part; });
    ids.push_back(part.size() == 1 ? static_cast<uint8_t>(part[0])
                                   : 256 + static_cast<int>(whole - small::kMerges.begin()));
  }
  return ids;
}

TEST(Tokenizer, JoinsByRankAndReadsBothFormsOfMerges) {
  for (const bool pairs : {true, false}) {
    const auto made = Tokenizer::from_hf_json_text(small::tokenizer_json(pairs).dump(), "small");
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_EQ(made.value().encode("hello world", false), (Ids{259, 260, 'o', 'r', 'l', 'd'}));
    EXPECT_EQ(made.value().vocab_size(), 309);
    EXPECT_EQ(made.value().token_bytes(259), "hello");
    EXPECT_EQ(made.value().token_bytes(280), "");
    EXPECT_EQ(made.value().token_bytes(-5), "");
  }
}

TEST(Tokenizer, EqualsTheDefinitionOnShortAndLongPieces) {
  const Tokenizer tokenizer = small::tokenizer();
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::string piece;
    for (size_t length = 1 + random() % 200; piece.size() < length;) piece += "aahelo"[random() % 6];
    EXPECT_EQ(tokenizer.encode(piece, false), naive_bpe(piece)) << piece;
  }
}

TEST(Tokenizer, WholePieceShortcutFollowsIgnoreMerges) {
  json file = small::tokenizer_json();
  file["model"]["vocab"]["xyz"] = 290;  // no merges lead to it
  EXPECT_EQ(Tokenizer::from_hf_json_text(file.dump(), "f").value().encode("xyz", false), Ids{290});
  file["model"]["ignore_merges"] = false;
  EXPECT_EQ(Tokenizer::from_hf_json_text(file.dump(), "f").value().encode("xyz", false),
            (Ids{'x', 'y', 'z'}));
}

TEST(Tokenizer, SpecialTokensOnlyOnRequest) {
  const Tokenizer tokenizer = small::tokenizer();
  EXPECT_EQ(tokenizer.encode("a<|start|><|end|>", true), (Ids{'a', 305, 306}));
  const Ids plain = tokenizer.encode("a<|start|>", false);
  EXPECT_TRUE(std::none_of(plain.begin(), plain.end(), [&](int32_t id) { return tokenizer.is_special(id); }));
  EXPECT_EQ(tokenizer.decode(plain), "a<|start|>");
  EXPECT_EQ(tokenizer.special_id("<|call|>"), 308);
  EXPECT_EQ(tokenizer.special_id("hello"), std::nullopt);
  EXPECT_EQ(tokenizer.stop_tokens(), (Ids{302, 308, 301}));
  EXPECT_TRUE(tokenizer.is_special(300));
  EXPECT_FALSE(tokenizer.is_special(259));
  EXPECT_FALSE(tokenizer.is_special(1 << 30));
}

TEST(Tokenizer, ALimitLeavesTheFirstTokens) {
  const Tokenizer tokenizer = small::tokenizer();
  std::string text = "hello world<|start|>aaaa\xFF";
  for (int i = 0; i < 5; ++i) text += text + std::string(100, 'a');
  for (const bool special : {false, true}) {
    const Ids all = tokenizer.encode(text, special);
    for (size_t most = 0; most < all.size() + 3; most += 1 + most / 9) {
      const Ids some = tokenizer.try_encode(text, special, {.most = most}).value();
      ASSERT_EQ(some, Ids(all.begin(), all.begin() + std::min(most + 1, all.size()))) << most;
    }
    std::stop_source cancel;
    cancel.request_stop();
    EXPECT_EQ(tokenizer.try_encode(text, special, {.cancel = cancel.get_token()}).status().code(),
              StatusCode::kCancelled);
  }
}

// No text makes a long run of work out of few bytes. No clock: a quadratic step would be done 10^12 times for
// each of these texts, and ctest's limit of time would end it.
TEST(Tokenizer, HostileTextsTakeTimeByTheirLength) {
  constexpr size_t kBytes = 1 << 20;
  const Tokenizer own = small::tokenizer();
  std::vector<const Tokenizer*> tokenizers = {&own};
  if (small::o200k() != nullptr) tokenizers.push_back(small::o200k());
  std::mt19937 random(5);
  std::vector<std::string> texts;
  for (const char* unit : {"a",      "A",      "aA",      "Aa",           " ",
                           "\n",     " \n",    "\t ",     "\r\n ",        "7",
                           "!",      "/",      "'",       "'s",           "a's",
                           "<",      "<|",     "<|end|>", "<|reserved_2", "\U0001F469\u200D",
                           "\u0301", "\u200D", "\u6F22",  "\u3042",       "\u0E01\u0E47",
                           "\u00A0", "\u3000", "\u1C8A",  "\u02B0",       "A\u02B0",
                           "\u01C5", "\xFF",   "\xF0\x9F"}) {
    std::string text;
    while (text.size() < kBytes) text += unit;
    texts.push_back(text + "x");
  }
  for (const std::string_view letters :
       {"abcdefghijklmnopqrstuvwxyz", "ABCDEFGH", "ab", "aA1' ", "!@#$%^&*()"}) {
    std::string& text = texts.emplace_back();
    while (text.size() < kBytes) text += letters[random() % letters.size()];
  }
  for (const Tokenizer* tokenizer : tokenizers) {
    for (const std::string& text : texts) {
      SCOPED_TRACE(text.substr(0, 20));
      const auto tokens = tokenizer->try_encode(text, true);
      ASSERT_TRUE(tokens.ok()) << tokens.status().message();
    }
  }
}

TEST(Tokenizer, EveryTextComesBack) {
  const Tokenizer tokenizer = small::tokenizer();
  for (const std::string& text : {std::string(), std::string("日本語 ñ\n\n 🙂 "),
                                  std::string("a\0b", 3), std::string("don't\r\n")})
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, true)), text);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("a\xFF\xE6\x97z\xED\xA0\x80", false)),
            "a\uFFFD\uFFFDz\uFFFD\uFFFD\uFFFD");
}

// As transformers tokenizes what a chat template has written.
TEST(Tokenizer, NothingIsPutAroundAText) {
  const json start = {{"SpecialToken", {{"id", "<|return|>"}}}}, text = {{"Sequence", {{"id", "A"}}}};
  const json pair = json::array({"<|return|>", 200002});
  for (const json& processor : {json({{"type", "TemplateProcessing"}, {"single", {start, text}}}),
                                json({{"type", "RobertaProcessing"}, {"sep", pair}, {"cls", pair}})}) {
    json file = small::tokenizer_json();
    file["post_processor"] = processor;
    const auto tokenizer = Tokenizer::from_hf_json_text(file.dump(), "tokenizer.json");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    EXPECT_EQ(tokenizer->encode("hello", true), small::tokenizer().encode("hello", true));
  }
}

TEST(Tokenizer, RefusesWhatItWouldNotReproduce) {
  const auto broken = [](const char* pointer, const json& value) {
    json file = small::tokenizer_json();
    file[json::json_pointer(pointer)] = value;
    return load_status(file).message();
  };
  EXPECT_NE(broken("/model/type", "Unigram").find("BPE"), std::string::npos);
  EXPECT_NE(broken("/normalizer", json::object()).find("normalizer"), std::string::npos);
  EXPECT_EQ(broken("/normalizer", {{"type", "Sequence"}, {"normalizers", json::array()}}), "");
  EXPECT_NE(broken("/model/dropout", 0.1).find("model.dropout is 0.1"), std::string::npos);
  EXPECT_NE(broken("/model/dropout", "0.1").find("model.dropout is"), std::string::npos);
  EXPECT_EQ(broken("/model/dropout", 0.0), "");
  EXPECT_NE(broken("/model/merges/0", json({"q", "zz"})).find("merge 0"), std::string::npos);
  EXPECT_NE(broken("/model/merges", 5).find("merges"), std::string::npos);
  EXPECT_NE(broken("/model/vocab/!", -1).find("'!'"), std::string::npos);
  EXPECT_NE(broken("/model/vocab/!", 1 << 30).find("'!'"), std::string::npos);
  EXPECT_NE(broken("/model/vocab/!", 34).find("twice"), std::string::npos);
  EXPECT_NE(broken("/added_tokens/0/lstrip", true).find("lstrip"), std::string::npos);
  EXPECT_NE(broken("/pre_tokenizer/pretokenizers/0/pattern/Regex", "(a").find("does not compile"),
            std::string::npos);
  EXPECT_NE(broken("/pre_tokenizer", nullptr).find("there is no pre_tokenizer"), std::string::npos);
  EXPECT_NE(broken("/pre_tokenizer/pretokenizers", json::array()).find("no split pattern"),
            std::string::npos);
  json missing = small::tokenizer_json();
  missing["model"]["vocab"].erase("!");
  EXPECT_NE(load_status(missing).message().find("0x21"), std::string::npos);
  EXPECT_FALSE(Tokenizer::from_hf_json_text("[1,", "file").ok());
  EXPECT_FALSE(Tokenizer::from_hf_json_text(std::string(1 << 20, '['), "file").ok());
  EXPECT_EQ(Tokenizer::from_hf_json("/nonexistent.json").status().code(), StatusCode::kNotFound);
}

TEST(Tokenizer, GgufWithSyntheticFillers) {
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(small::spell(byte));
  for (int i = 256; i < 400; ++i) tokens.push_back("tok" + std::to_string(i));
  types.assign(tokens.size(), 1);
  tokens[300] = "<|start|>", types[300] = 3;
  tokens[301] = "<custom>", types[301] = 4;
  tokens[302] = small::spell("h i");
  const std::string line = small::spell("h ") + " " + small::spell("i");
  const auto made = Tokenizer::from_gguf(tokens, {line}, types, -1, 300);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(made.value().encode("hi<custom><|start|>", true), (Ids{'h', 'i', 301, 300}));
  EXPECT_EQ(made.value().stop_tokens(), Ids{});  // <|start|> ends no turn, whatever the file says
  EXPECT_EQ(made.value().vocab_size(), 400);
  EXPECT_FALSE(Tokenizer::from_gguf(tokens, {}, types, -1, 400).ok());
  EXPECT_FALSE(Tokenizer::from_gguf({}, {}, {}, -1, -1).ok());
  EXPECT_TRUE(Tokenizer::from_gguf(tokens, {}, types, -1, -1, "").ok());
  const Status other = Tokenizer::from_gguf(tokens, {}, types, -1, -1, "qwen2").status();
  EXPECT_NE(other.message().find("'qwen2'"), std::string::npos) << other.message();
}

TEST(Tokenizer, TiktokenFilesWithDamage) {
  for (const char* lines : {"IQ== 0\nIQ", "IQ= 0\n", "!Q== 0\n", "IQ== 0 1\n", "IQ== x\n", "IQ== 199998\n",
                            "IQ== -1\n", "IQ== 0\nIg== 0\n"}) {
    EXPECT_FALSE(Tokenizer::from_tiktoken_text(lines, "ranks").ok()) << lines;
  }
}

// The time of reading one is quadratic in its bytes.
TEST(Tokenizer, TiktokenTokensOfManyBytes) {
  std::string alphabet;
  for (int byte = 0; byte < 256; ++byte) {
    constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    alphabet += {kDigits[byte >> 2], kDigits[(byte & 3) << 4], '=', '='};
    alphabet += fmt::format(" {}\n", byte);
  }
  const auto with = [&](size_t bytes) {  // the bytes are zeros
    return Tokenizer::from_tiktoken_text(alphabet + std::string(bytes / 3 * 4, 'A') + " 256", "ranks")
        .status();
  };
  EXPECT_TRUE(with(1023).ok()) << with(1023).message();
  EXPECT_NE(with(1026).message().find("line 257: a token of 1026 bytes"), std::string::npos)
      << with(1026).message();
}

TEST(O200k, KnownTokens) {
  SKIP_WITHOUT_O200K();
  const Tokenizer& tokenizer = *small::o200k();
  EXPECT_EQ(tokenizer.encode("hello world", false), (Ids{24912, 2375}));
  EXPECT_EQ(tokenizer.encode("<|start|>", false), (Ids{27, 91, 5236, 91, 29}));
  EXPECT_EQ(tokenizer.encode("<|start|>", true), Ids{200006});
  EXPECT_EQ(tokenizer.encode("<|reserved_200500|>", true), Ids{200500});
  EXPECT_EQ(tokenizer.vocab_size(), 201088);
  EXPECT_EQ(tokenizer.stop_tokens(), (Ids{200002, 200012, 199999}));
  EXPECT_EQ(tokenizer.decode(Ids{200003, 199998}), "<|constrain|><|startoftext|>");
}

// From tools/tokenizer/make_encode_goldens.py.
TEST(O200k, TrickyTextsEncodeAsTiktokenDoes) {
  SKIP_WITHOUT_O200K();
  const auto bytes = read_whole(MOESAIC_SOURCE_DIR "/tests/golden/text/encode.json", 256 << 20);
  ASSERT_TRUE(bytes.ok()) << bytes.status().message();
  const json goldens = json::parse(bytes.value());
  ASSERT_GT(goldens.size(), 100u);
  for (const json& golden : goldens) {
    const std::string text = golden["text"];
    EXPECT_EQ(small::o200k()->encode(text, false), golden["plain"].get<Ids>()) << golden["text"];
    EXPECT_EQ(small::o200k()->encode(text, true), golden["special"].get<Ids>()) << golden["text"];
    EXPECT_EQ(small::o200k()->decode(golden["plain"].get<Ids>()), text);
  }
}

// Each takes 0.02 to 0.5 s on one 2.x GHz core; what is quadratic would exceed ctest's limit of time.
TEST(O200k, AMegabyteOfAnythingIsLinear) {
  SKIP_WITHOUT_O200K();
  for (const std::string unit : {"a", "A", "Aa", " ", "\n", " \n", "日", "\u0301", "1", "!", "/", "<", "<|",
                                 "'s", "\u00a0", "A\u0301", "\xFF"}) {
    std::string text;
    while (text.size() < 1 << 20) text += unit;
    const Result<Ids> tokens = small::o200k()->try_encode(text + "x", true);
    ASSERT_TRUE(tokens.ok()) << tokens.status().message();
    if (unit != "\xFF") {
      EXPECT_EQ(small::o200k()->decode(tokens.value()), text + "x");
    }
  }
}

}  // namespace
}  // namespace moesaic
