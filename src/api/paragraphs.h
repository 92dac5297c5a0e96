// The text that a field of an answer shows of several messages.
#pragma once

#include <string>
#include <utility>

#include "moesaic/types.h"

namespace moesaic {

class Paragraphs {
 public:
  // The text that the piece adds to the field: a blank line stands between two messages.
  std::string add(const TextPiece& piece) {
    if (piece.text.empty()) return {};
    const bool apart = std::exchange(any_, true) && piece.begins;
    return apart ? "\n\n" + piece.text : piece.text;
  }

 private:
  bool any_ = false;
};

}  // namespace moesaic
