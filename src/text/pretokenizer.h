// Cuts text into the pieces within which byte pairs are joined, by a tokenizer's regular expression.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/o200k_pattern.h"
#include "moesaic/status.h"

namespace moesaic {

// GPT-2's, which Hugging Face's ByteLevel uses on its own (openai/gpt-2, src/encoder.py).
extern const char* const kGpt2Pattern;

class Pretokenizer {
 public:
  // Fails where PCRE2 does not accept the pattern. Letters, marks and numbers are those of Unicode 16 at
  // least; white space is Unicode's property.
  static Result<Pretokenizer> create(const std::string& pattern);

  // Calls piece with every match and with every stretch between matches, in order, until it returns false.
  // text must be valid UTF-8.
  // Fails, without a crash, where the pattern needs more than the match limits on this text. Thread-safe.
  Status split(std::string_view text, const std::function<bool(std::string_view)>& piece) const;

 private:
  struct FreeCode {
    void operator()(void* code) const;
  };
  std::unique_ptr<void, FreeCode> code_;  // pcre2_code
};

}  // namespace moesaic
