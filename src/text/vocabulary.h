// The tokens of a byte-level vocabulary: their bytes by id, their ids by bytes, and which of them are added
// ones, found in text by their names, or special.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "moesaic/status.h"

namespace moesaic {

// Harmony's tokens (openai/harmony, src/tiktoken_ext/public_encodings.rs). They are special whatever a file
// says of them: text of a user's must not become one of them.
inline constexpr std::pair<int32_t, const char*> kHarmonyTokens[] = {
    {199998, "<|startoftext|>"}, {199999, "<|endoftext|>"}, {200002, "<|return|>"},
    {200003, "<|constrain|>"},   {200005, "<|channel|>"},   {200006, "<|start|>"},
    {200007, "<|end|>"},         {200008, "<|message|>"},   {200012, "<|call|>"}};

bool is_harmony_name(std::string_view name);

// A token whose name is looked for in text before the text is split (tokenizer.json's added_tokens, GGUF's
// control and user-defined types).
struct AddedToken {
  int32_t id = -1;
  bool special = true;  // no text: found only where special tokens are asked for, and not shown
  bool late = false;    // looked for in what the others leave (tokenizer.json: normalized)
};

class Vocabulary {
 public:
  // Far above the 201,088 of o200k_harmony: ids from a file size tables, so they are bounded.
  static constexpr int32_t kMaxTokens = 1 << 22;
  static constexpr size_t kMaxNameBytes = 256;

  Vocabulary() = default;
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  // Ids may come in any order and leave gaps; a gap is a token of no bytes. Of two tokens with the same bytes
  // the first is the one that text encodes to.
  Status add(int32_t id, std::string_view bytes);
  // An added token's bytes are its name. It replaces an ordinary token of that id; text may still be joined
  // to it only where it is not special and that token had the same bytes.
  Status add_named(const AddedToken& token, std::string_view name);
  Status add_special(int32_t id, std::string_view name) { return add_named({.id = id}, name); }

  int size() const { return static_cast<int>(tokens_.size()); }
  // Empty for ids out of range.
  std::string_view bytes(int32_t id) const;
  bool is_special(int32_t id) const;
  // -1 where no ordinary token has these bytes.
  int32_t find(std::string_view bytes) const;
  std::optional<int32_t> special_id(std::string_view name) const;
  // In the order in which they were added.
  const std::vector<AddedToken>& added() const { return added_; }

 private:
  struct Token {
    const char* data = nullptr;
    uint32_t length = 0;
    bool special = false;
  };
  Status set(int32_t id, std::string_view bytes, bool special);
  const char* keep(std::string_view bytes);

  std::vector<Token> tokens_;              // [size]
  std::vector<std::vector<char>> blocks_;  // the bytes; a block never grows past its capacity
  std::unordered_map<std::string_view, int32_t> ids_, special_ids_;
  std::vector<AddedToken> added_;
};

}  // namespace moesaic
