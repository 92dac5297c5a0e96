#include "text/newer_unicode.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace moesaic {
namespace {

// Text that stands in for a newer character: three and four bytes of UTF-8.
struct StandIn {
  std::string_view three, four;
};
constexpr StandIn kLu = {"\u2102", "\U0001D400"};  // double-struck C, bold A: upper case without a lower case
constexpr StandIn kLl = {"\u210A", "\U0001D41A"};  // script g, bold a
constexpr StandIn kLm = {"\u1D2C", "\U00016F93"};
constexpr StandIn kLo = {"\u3042", "\U00020000"};
constexpr StandIn kM = {"\u0900", "\U00011000"};
constexpr StandIn kN = {"\u0966", "\U0001D7CE"};

struct Range {
  char32_t first, last;
  const StandIn& stand_in;
};

// tools/tokenizer/make_newer_unicode.py: 9,485 code points, Unicode 14 against tiktoken 0.14.
constexpr Range kNewer[] = {
    {0x897, 0x897, kM},      {0xCF3, 0xCF3, kM},      {0xECE, 0xECE, kM},      {0x1C89, 0x1C89, kLu},
    {0x1C8A, 0x1C8A, kLl},   {0xA7CB, 0xA7CC, kLu},   {0xA7CD, 0xA7CD, kLl},   {0xA7DA, 0xA7DA, kLu},
    {0xA7DB, 0xA7DB, kLl},   {0xA7DC, 0xA7DC, kLu},   {0x105C0, 0x105F3, kLo}, {0x10D40, 0x10D49, kN},
    {0x10D4A, 0x10D4D, kLo}, {0x10D4E, 0x10D4E, kLm}, {0x10D4F, 0x10D4F, kLo}, {0x10D50, 0x10D65, kLu},
    {0x10D69, 0x10D6D, kM},  {0x10D6F, 0x10D6F, kLm}, {0x10D70, 0x10D85, kLl}, {0x10EC2, 0x10EC4, kLo},
    {0x10EFC, 0x10EFF, kM},  {0x1123F, 0x11240, kLo}, {0x11241, 0x11241, kM},  {0x11380, 0x11389, kLo},
    {0x1138B, 0x1138B, kLo}, {0x1138E, 0x1138E, kLo}, {0x11390, 0x113B5, kLo}, {0x113B7, 0x113B7, kLo},
    {0x113B8, 0x113C0, kM},  {0x113C2, 0x113C2, kM},  {0x113C5, 0x113C5, kM},  {0x113C7, 0x113CA, kM},
    {0x113CC, 0x113D0, kM},  {0x113D1, 0x113D1, kLo}, {0x113D2, 0x113D2, kM},  {0x113D3, 0x113D3, kLo},
    {0x113E1, 0x113E2, kM},  {0x116D0, 0x116E3, kN},  {0x11BC0, 0x11BE0, kLo}, {0x11BF0, 0x11BF9, kN},
    {0x11F00, 0x11F01, kM},  {0x11F02, 0x11F02, kLo}, {0x11F03, 0x11F03, kM},  {0x11F04, 0x11F10, kLo},
    {0x11F12, 0x11F33, kLo}, {0x11F34, 0x11F3A, kM},  {0x11F3E, 0x11F42, kM},  {0x11F50, 0x11F59, kN},
    {0x11F5A, 0x11F5A, kM},  {0x1342F, 0x1342F, kLo}, {0x13440, 0x13440, kM},  {0x13441, 0x13446, kLo},
    {0x13447, 0x13455, kM},  {0x13460, 0x143FA, kLo}, {0x16100, 0x1611D, kLo}, {0x1611E, 0x1612F, kM},
    {0x16130, 0x16139, kN},  {0x16D40, 0x16D42, kLm}, {0x16D43, 0x16D6A, kLo}, {0x16D6B, 0x16D6C, kLm},
    {0x16D70, 0x16D79, kN},  {0x18CFF, 0x18CFF, kLo}, {0x1B132, 0x1B132, kLo}, {0x1B155, 0x1B155, kLo},
    {0x1CCF0, 0x1CCF9, kN},  {0x1D2C0, 0x1D2D3, kN},  {0x1DF25, 0x1DF2A, kLl}, {0x1E030, 0x1E06D, kLm},
    {0x1E08F, 0x1E08F, kM},  {0x1E4D0, 0x1E4EA, kLo}, {0x1E4EB, 0x1E4EB, kLm}, {0x1E4EC, 0x1E4EF, kM},
    {0x1E4F0, 0x1E4F9, kN},  {0x1E5D0, 0x1E5ED, kLo}, {0x1E5EE, 0x1E5EF, kM},  {0x1E5F0, 0x1E5F0, kLo},
    {0x1E5F1, 0x1E5FA, kN},  {0x2B739, 0x2B739, kLo}, {0x2EBF0, 0x2EE5D, kLo}, {0x31350, 0x323AF, kLo},
};

// True if kNewer has a character that begins with these two bytes. Most scripts end here; emoji (F0 9F) too.
bool may_be_newer(uint8_t lead, uint8_t second) {
  switch (lead) {
    case 0xE0:
      return second == 0xA2 || second == 0xB3 || second == 0xBB;
    case 0xE1:
      return second == 0xB2;
    case 0xEA:
      return second == 0x9F;
    case 0xF0:
      return second != 0x9F;
    default:
      return false;
  }
}

// The code point of three or four bytes of valid UTF-8.
char32_t code_point(std::string_view bytes) {
  char32_t code = static_cast<uint8_t>(bytes[0]) & (bytes.size() == 3 ? 0x0F : 0x07);
  for (const char c : bytes.substr(1)) code = code << 6 | (static_cast<uint8_t>(c) & 0x3F);
  return code;
}

// The stand-in for the character of three or four bytes, or nothing.
std::string_view stand_in(std::string_view character) {
  const char32_t code = code_point(character);
  const auto* after =
      std::upper_bound(std::begin(kNewer), std::end(kNewer), code,
                       [](char32_t value, const Range& range) { return value < range.first; });
  if (after == std::begin(kNewer) || code > after[-1].last) return {};
  return character.size() == 3 ? after[-1].stand_in.three : after[-1].stand_in.four;
}

}  // namespace

std::optional<std::string> with_older_characters(std::string_view text) {
  std::optional<std::string> copy;
  for (size_t at = 0; at + 2 < text.size(); ++at) {
    const auto lead = static_cast<uint8_t>(text[at]);
    if (lead < 0xE0 || !may_be_newer(lead, static_cast<uint8_t>(text[at + 1]))) continue;
    const std::string_view older = stand_in(text.substr(at, lead < 0xF0 ? 3 : 4));
    if (older.empty()) continue;
    if (!copy) copy.emplace(text);
    copy->replace(at, older.size(), older);
  }
  return copy;
}

}  // namespace moesaic
