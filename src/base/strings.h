// Helpers for short texts.
#pragma once

#include <algorithm>
#include <charconv>
#include <optional>
#include <span>
#include <string_view>

namespace moesaic {

// text without the bytes of `spaces` at its ends.
inline std::string_view trimmed(std::string_view text, std::string_view spaces) {
  text.remove_prefix(std::min(text.find_first_not_of(spaces), text.size()));
  return text.substr(0, text.find_last_not_of(spaces) + 1);
}

// The whole text as a number; nothing where it is none that the type holds.
template <typename Number>
std::optional<Number> number_of(std::string_view text) {
  Number number{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  return code == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

inline bool is_one_of(std::span<const std::string_view> names, std::string_view word) {
  return std::ranges::find(names, word) != names.end();
}

}  // namespace moesaic
