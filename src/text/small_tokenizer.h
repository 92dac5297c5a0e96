// For tests: a complete byte-level tokenizer.json of 256 bytes, a few merges and harmony's special tokens,
// and the o200k_base vocabulary where this machine has it.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace moesaic::small {

// GPT-2's spelling of one byte, in UTF-8.
inline std::string spell(int byte) {
  int code = byte, next = 256;
  const auto plain = [](int b) { return (b > 0x20 && b < 0x7F) || (b > 0xA0 && b != 0xAD); };
  for (int b = 0; b <= byte; ++b)
    if (!plain(b)) code = b == byte ? next : code, ++next;
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

inline std::string spell(std::string_view bytes) {
  std::string spelled;
  for (const char c : bytes) spelled += spell(static_cast<unsigned char>(c));
  return spelled;
}

// In the order of their rank. Ids: byte b is b, merge i is 256 + i, special i is 300 + i.
inline const std::vector<std::pair<std::string, std::string>> kMerges = {
    {"h", "e"}, {"l", "l"}, {"he", "ll"}, {"hell", "o"},
    {" ", "w"}, {"a", "a"}, {"aa", "aa"}, {"\xE6", "\x97"}};
inline const std::vector<std::string> kSpecials = {"<|startoftext|>", "<|endoftext|>", "<|return|>",
                                                   "<|constrain|>",   "<|channel|>",   "<|start|>",
                                                   "<|end|>",         "<|message|>",   "<|call|>"};
inline constexpr int kFirstSpecial = 300;

inline nlohmann::json tokenizer_json(bool merges_as_pairs = true) {
  using nlohmann::json;
  json vocab, merges = json::array(), added = json::array();
  for (int byte = 0; byte < 256; ++byte) vocab[spell(byte)] = byte;
  for (size_t i = 0; i < kMerges.size(); ++i) {
    const std::string left = spell(kMerges[i].first), right = spell(kMerges[i].second);
    vocab[left + right] = 256 + i;
    merges.push_back(merges_as_pairs ? json({left, right}) : json(fmt::format("{} {}", left, right)));
  }
  for (size_t i = 0; i < kSpecials.size(); ++i)
    added.push_back({{"id", kFirstSpecial + i}, {"content", kSpecials[i]}, {"special", true}});
  const json split = {{"type", "Split"},
                      {"pattern", {{"Regex", kO200kPattern}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  const json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  return {{"normalizer", nullptr},
          {"added_tokens", added},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}}},
          {"model", {{"type", "BPE"}, {"ignore_merges", true}, {"vocab", vocab}, {"merges", merges}}}};
}

inline Tokenizer tokenizer() {
  Result<Tokenizer> made = Tokenizer::from_hf_json_text(tokenizer_json().dump(), "small");
  EXPECT_TRUE(made.ok()) << made.status().message();
  return std::move(made).value();
}

// Null where the file is absent.
inline const Tokenizer* o200k() {
  static const Result<Tokenizer> made = Tokenizer::from_tiktoken(
      (std::filesystem::path(MOESAIC_SOURCE_DIR) / "../shared/data/o200k_base.tiktoken").string());
  return made.ok() ? &made.value() : nullptr;
}

}  // namespace moesaic::small

#define SKIP_WITHOUT_O200K() \
  if (::moesaic::small::o200k() == nullptr) GTEST_SKIP() << "../shared/data/o200k_base.tiktoken is absent"
