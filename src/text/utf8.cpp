#include "text/utf8.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <cstring>

namespace moesaic {
namespace {

// The bytes that may follow a lead byte (Unicode 15, table 3-7): their number and the range of the second.
struct Lead {
  size_t length;
  uint8_t second_low, second_high;
};

Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2 || byte > 0xF4) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {4, 0x80, 0xBF};
}

size_t ascii_run(std::string_view text, size_t at) {
  constexpr uint64_t kHighBits = 0x8080808080808080;
  size_t end = at;
  for (uint64_t word = 0; end + 8 <= text.size(); end += 8) {
    std::memcpy(&word, text.data() + end, 8);
    if (word & kHighBits) break;
  }
  while (end < text.size() && static_cast<uint8_t>(text[end]) < 0x80) ++end;
  return end - at;
}

}  // namespace

Utf8Step utf8_step(std::string_view text) {
  const Lead lead = lead_of(static_cast<uint8_t>(text[0]));
  if (lead.length == 0) return {1, Utf8Kind::kInvalid};
  for (size_t i = 1; i < lead.length; ++i) {
    if (i == text.size()) return {i, Utf8Kind::kIncomplete};
    const auto byte = static_cast<uint8_t>(text[i]);
    const uint8_t low = i == 1 ? lead.second_low : 0x80, high = i == 1 ? lead.second_high : 0xBF;
    if (byte < low || byte > high) return {i, Utf8Kind::kInvalid};
  }
  return {lead.length, Utf8Kind::kValid};
}

size_t utf8_valid_prefix(std::string_view text) {
  size_t at = 0;
  while ((at += ascii_run(text, at)) < text.size()) {
    const Utf8Step step = utf8_step(text.substr(at));
    if (step.kind != Utf8Kind::kValid) break;
    at += step.length;
  }
  return at;
}

size_t utf8_whole(std::string_view text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const size_t at = text.size() - back;
    if ((text[at] & 0xC0) == 0x80) continue;
    return utf8_step(text.substr(at)).kind == Utf8Kind::kIncomplete ? at : text.size();
  }
  return text.size();
}

std::string utf8_lossy(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  while (!text.empty()) {
    const size_t valid = utf8_valid_prefix(text);
    clean.append(text.substr(0, valid));
    text.remove_prefix(valid);
    if (text.empty()) break;
    clean.append(kReplacementCharacter);
    text.remove_prefix(utf8_step(text).length);
  }
  return clean;
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char* digits = text.data() + i + 1;
    uint8_t byte = 0;
    const bool escapes = text[i] == '%' && i + 2 < text.size() &&
                         std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2;
    out += escapes ? static_cast<char>(byte) : text[i];
    if (escapes) i += 2;
  }
  return out;
}

std::optional<std::string> base64_decoded(std::string_view digits, std::string_view alphabet) {
  std::string out;
  uint32_t bits = 0;
  int held = 0;
  for (const char c : digits) {
    const size_t value = alphabet.find(c);
    if (value == std::string_view::npos) return {};
    bits = bits << 6 | static_cast<uint32_t>(value);
    held += 6;
    if (held < 8) continue;
    held -= 8;
    out += static_cast<char>(bits >> held & 255);
  }
  return out;
}

bool is_made_of(std::string_view text, std::string_view marks) {
  return !text.empty() && std::ranges::all_of(text, [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || marks.find(c) != std::string_view::npos;
  });
}

}  // namespace moesaic
