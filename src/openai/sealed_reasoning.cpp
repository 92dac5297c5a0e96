#include "openai/sealed_reasoning.h"

#include <fmt/format.h>

#include <cstdint>

#include "base/file_cache.h"
#include "text/utf8.h"

namespace moesaic::openai {
namespace {

constexpr std::string_view kVersion = "moesaic-1.";
constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
constexpr size_t kSumDigits = 16;

std::string checksum(std::string_view text) { return fmt::format("{:016x}", fnv1a(text)); }

// base64url without padding.
std::string encode(std::string_view bytes) {
  std::string out;
  uint32_t bits = 0;
  int held = 0;
  for (const char c : bytes) {
    bits = bits << 8 | static_cast<unsigned char>(c);
    for (held += 8; held >= 6; held -= 6) out += kDigits[bits >> (held - 6) & 63];
  }
  if (held > 0) out += kDigits[bits << (6 - held) & 63];
  return out;
}

}  // namespace

std::string seal_reasoning(std::string_view text) {
  return fmt::format("{}{}{}", kVersion, checksum(text), encode(text));
}

std::optional<std::string> unseal_reasoning(std::string_view sealed) {
  if (!sealed.starts_with(kVersion) || sealed.size() < kVersion.size() + kSumDigits) return {};
  sealed.remove_prefix(kVersion.size());
  std::optional<std::string> text = base64_decoded(sealed.substr(kSumDigits), kDigits);
  if (text && checksum(*text) != sealed.substr(0, kSumDigits)) text.reset();
  return text;
}

}  // namespace moesaic::openai
