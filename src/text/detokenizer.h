// Tokens to text while they arrive.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"

namespace moesaic {

// Hands out whole UTF-8 characters only: bytes of a character that is not complete wait for the next token,
// at most three of them. Ill-formed sequences become U+FFFD. The tokenizer must outlive it. Not thread-safe.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  // The text that this token completes; may be empty. Special tokens appear by name.
  std::string push(int32_t token);
  // The text of a stream's end: U+FFFD if a character was left incomplete. The decoder then starts anew.
  std::string flush();
  // Bytes of a character wait for its other ones.
  bool mid_character() const { return !waiting_.empty(); }

 private:
  const Tokenizer* tokenizer_;
  std::string waiting_;
};

}  // namespace moesaic
