// Special tokens as answers need them: in a chat they are never text.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "moesaic/engine.h"

namespace moesaic::openai {

// True for any special token: its name is read as other tokens where special names are text.
inline bool is_special(const Model& model, int32_t token) {
  const std::string name = model.detokenize({&token, 1});
  const auto read = model.tokenize(name, true), as_text = model.tokenize(name, false);
  return read.ok() && as_text.ok() && read.value() != as_text.value();
}

// The special tokens of harmony.
class SpecialTokens {
 public:
  explicit SpecialTokens(const Model& model) {
    for (size_t i = 0; i < kNames.size(); ++i) {
      const auto tokens = model.tokenize(kNames[i], true);
      ids_[i] = tokens.ok() && tokens->size() == 1 ? tokens.value()[0] : -1;
    }
  }

  bool has(int32_t token) const { return std::find(ids_.begin(), ids_.end(), token) != ids_.end(); }
  bool begins_text(int32_t token) const { return token == ids_[0]; }
  // Behind this token the message that was open is complete.
  bool ends_message(int32_t token) const {
    return std::find(ids_.begin() + 2, ids_.end(), token) != ids_.end();
  }

 private:
  static constexpr std::array kNames = {"<|message|>", "<|constrain|>", "<|end|>",     "<|return|>",
                                        "<|call|>",    "<|endoftext|>", "<|channel|>", "<|start|>"};
  std::array<int32_t, kNames.size()> ids_{};
};

}  // namespace moesaic::openai
