#include "chat/word_wrap.h"

#include <algorithm>
#include <utility>

#include "chat/terminal_text.h"
#include "text/utf8.h"

namespace moesaic::chat {
namespace {

// The bytes of the SGR sequence or of the character that `text` begins with.
size_t step(std::string_view text) {
  if (text[0] == '\x1b') return std::min(text.find('m'), text.size() - 1) + 1;
  return utf8_step(text).length;
}

constexpr std::string_view kJoiner = "\xE2\x80\x8D";  // U+200D

int width(std::string_view text) { return text[0] == '\x1b' ? 0 : display_width(text); }

}  // namespace

void WordWrap::text(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = step(text.substr(at));
    put(text.substr(at, length));
    at += length;
  }
}

void WordWrap::verbatim(std::string_view text) {
  end_word();
  column_ += static_cast<int>(spaces_.size());
  out_ += std::exchange(spaces_, {});
  for (size_t at = 0; at < text.size();) {
    const std::string_view character = text.substr(at, step(text.substr(at)));
    column_ = character == "\n" ? 0 : column_ + width(character);
    out_ += character;
    at += character.size();
  }
}

void WordWrap::put(std::string_view character) {
  if (character == "\n") return end_line();
  if (character == " " || character == "\t") {
    end_word();
    begun_ = false;
    spaces_ += character;
    return;
  }
  const int wide = width(character);
  const bool belongs =
      wide == 0 || joined_;  // to the character before: accents, and emoji of several characters
  if (!belongs && (wide > 1 || wide_)) end_word(), begun_ = false;  // Chinese and Japanese have no spaces
  word_ += character;
  word_width_ += wide;
  visible_ = visible_ || character[0] != '\x1b';
  if (wide > 0) wide_ = wide > 1;
  joined_ = character == kJoiner;
  if (word_width_ >= columns_) end_word(), begun_ = true;
}

void WordWrap::end_word() {
  wide_ = joined_ = false;
  if (!std::exchange(visible_, false)) {  // a style alone takes no room
    out_ += std::exchange(word_, {});
    return;
  }
  const int spaces = static_cast<int>(spaces_.size());
  const bool fits = column_ + spaces + word_width_ <= columns_;
  if (fits || begun_ || column_ == 0) {
    out_ += spaces_;
    column_ += spaces;
  } else {
    out_ += '\n';
    column_ = 0;
  }
  out_ += std::exchange(word_, {});
  column_ += std::exchange(word_width_, 0);
  if (column_ > columns_) column_ %= columns_;
  spaces_.clear();
}

void WordWrap::end_line() {
  end_word();
  begun_ = false;
  spaces_.clear();
  out_ += '\n';
  column_ = 0;
}

std::string WordWrap::take() { return std::exchange(out_, {}); }

std::string WordWrap::finish() {
  std::string out = (end_word(), take());
  *this = WordWrap(columns_);
  return out;
}

}  // namespace moesaic::chat
