#include "chat/terminal_text.h"

#include <langinfo.h>
#include <wchar.h>

#include <algorithm>
#include <clocale>

#include "text/utf8.h"

namespace moesaic::chat {
namespace {

wchar_t code_point(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return byte(0);
  wchar_t c = byte(0) & (0x7F >> character.size());
  for (size_t i = 1; i < character.size(); ++i) c = static_cast<wchar_t>(c << 6 | (byte(i) & 0x3F));
  return c;
}

// U+2400 and on are pictures of the controls.
std::string shown(std::string_view character) {
  const wchar_t c = code_point(character);
  if (c == '\n' || c == '\t') return std::string(character);
  if (c == '\r') return "";
  if (c < 0x20) return std::string("\xE2\x90") + static_cast<char>(0x80 + c);
  if (c == 0x7F) return "\xE2\x90\xA1";
  if (c >= 0x80 && c < 0xA0) return std::string(kReplacementCharacter);
  return std::string(character);
}

int width_of(std::string_view character) {
  const wchar_t c = code_point(character);
  if (c < 0x7F) return 1;
  const int width = ::wcwidth(c);
  return width < 0 ? 1 : width;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const auto [length, kind] = utf8_step(text.substr(at));
    out += kind == Utf8Kind::kValid ? shown(text.substr(at, length)) : std::string(kReplacementCharacter);
    at += length;
  }
  return out;
}

std::string printable_line(std::string_view text) {
  std::string line = printable(text);
  std::ranges::replace_if(
      line, [](char c) { return c == '\n' || c == '\t'; }, ' ');
  return line;
}

int display_width(std::string_view text) {
  int width = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_step(text.substr(at)).length;
    width += width_of(text.substr(at, length));
    at += length;
  }
  return width;
}

std::string_view first_columns(std::string_view text, int columns) {
  size_t at = 0;
  for (int width = 0; at < text.size();) {
    const size_t length = utf8_step(text.substr(at)).length;
    width += width_of(text.substr(at, length));
    if (width > columns) break;
    at += length;
  }
  return text.substr(0, at);
}

void use_utf8() {
  std::setlocale(LC_CTYPE, "");
  if (std::string_view(nl_langinfo(CODESET)) != "UTF-8") std::setlocale(LC_CTYPE, "C.UTF-8");
}

}  // namespace moesaic::chat
