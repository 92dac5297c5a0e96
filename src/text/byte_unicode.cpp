#include "text/byte_unicode.h"

#include <array>
#include <cstdint>

#include "text/utf8.h"

namespace moesaic {
namespace {

bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

constexpr int kOthers = 68;
using ByteOf = std::array<int16_t, 256 + kOthers>;  // code point -> byte, or -1

ByteOf make_byte_of() {
  ByteOf byte_of;
  byte_of.fill(-1);
  int next = 256;
  for (int byte = 0; byte < 256; ++byte)
    byte_of[stands_for_itself(byte) ? byte : next++] = static_cast<int16_t>(byte);
  return byte_of;
}

}  // namespace

std::optional<std::string> bytes_from_unicode(std::string_view spelled) {
  static const ByteOf byte_of = make_byte_of();
  std::string bytes;
  while (!spelled.empty()) {
    const Utf8Step step = utf8_step(spelled);
    if (step.kind != Utf8Kind::kValid || step.length > 2) return std::nullopt;
    const auto lead = static_cast<uint8_t>(spelled[0]);
    const unsigned code =
        step.length == 1 ? lead : (lead & 0x1Fu) << 6 | (static_cast<uint8_t>(spelled[1]) & 0x3Fu);
    if (code >= byte_of.size() || byte_of[code] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte_of[code]));
    spelled.remove_prefix(step.length);
  }
  return bytes;
}

}  // namespace moesaic
