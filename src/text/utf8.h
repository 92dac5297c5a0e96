// UTF-8 read character by character, with the Unicode standard's "maximal subpart" practice for what is not.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace moesaic {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8Kind { kValid, kInvalid, kIncomplete };

// The first character of a non-empty text. length is in bytes, at least 1: the whole character, or the
// ill-formed bytes that one U+FFFD stands for. kIncomplete: the text ends inside a character that is well
// formed so far.
struct Utf8Step {
  size_t length;
  Utf8Kind kind;
};
Utf8Step utf8_step(std::string_view text);

// The length of the longest valid prefix.
size_t utf8_valid_prefix(std::string_view text);

// The length without the character at the end that is not complete; the text's own where there is none.
size_t utf8_whole(std::string_view text);

// Each ill-formed sequence becomes one U+FFFD.
std::string utf8_lossy(std::string_view text);

// The text of a part of an address: %2F is a slash. A '%' that begins no such thing stands for itself.
std::string percent_decoded(std::string_view text);

// The bytes of base64 without padding; nothing where a digit is none of the alphabet's 64.
std::optional<std::string> base64_decoded(std::string_view digits, std::string_view alphabet);

// True for a text, not empty, of letters and digits of ASCII and of these marks.
bool is_made_of(std::string_view text, std::string_view marks);

}  // namespace moesaic
