// nlohmann's parser, without its habit of ending at a NUL byte: what stands behind one would go unread.
// Before it reads, check_extent() bounds what it may build.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "moesaic/status.h"

namespace moesaic {

// Values of any kind that JSON of a file may have. gpt-oss's tokenizer.json has 1.5 million. Each takes up to
// 100 bytes, of which the text may have three.
inline constexpr int64_t kMostFileValues = 4'000'000;

// The most that JSON may have.
struct JsonLimits {
  size_t depth;
  int64_t containers = INT64_MAX;    // objects and arrays
  int64_t strings = INT64_MAX;       // members' names included
  int64_t values = kMostFileValues;  // containers included
  int64_t members = INT64_MAX;       // in one object
  // Ordered JSON finds members by a scan, so each name is compared with those before it in its object.
  int64_t comparisons = INT64_MAX;
};
inline constexpr int64_t kMaxMemberComparisons = 60'000'000;

// Fails where the text has more, before anything is built of it; name stands in the message. A text that is
// no JSON may pass or fail.
Status check_extent(std::string_view text, const JsonLimits& limits, const std::string& name);

// The place behind a string's closing quote.
size_t skip_json_string(std::string_view text, size_t at);

// Discarded where the text is not one JSON value with white space around it.
template <typename AnyJson>
AnyJson parse_whole_json(std::string_view text) {
  if (text.find('\0') != std::string_view::npos) return AnyJson(AnyJson::value_t::discarded);
  return AnyJson::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
}

// Takes every value and keeps none: for readers that look for something else.
template <typename AnyJson>
class SilentSax : public nlohmann::json_sax<AnyJson> {
 public:
  using Sax = nlohmann::json_sax<AnyJson>;
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(typename Sax::number_integer_t) override { return true; }
  bool number_unsigned(typename Sax::number_unsigned_t) override { return true; }
  bool number_float(typename Sax::number_float_t, const typename Sax::string_t&) override { return true; }
  bool string(typename Sax::string_t&) override { return true; }
  bool binary(typename Sax::binary_t&) override { return true; }
  bool start_object(size_t) override { return true; }
  bool key(typename Sax::string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }
};

// object[key], or null where it is absent and where object is no object.
template <typename AnyJson>
const AnyJson& member(const AnyJson& object, const char* key) {
  static const AnyJson null;
  if (!object.is_object()) return null;
  const auto at = object.find(key);
  return at == object.end() ? null : *at;
}

// object[key] where that is a string, a fallback otherwise, and where object is no object.
template <typename AnyJson>
std::string string_or(const AnyJson& object, const char* key, const std::string& fallback) {
  const AnyJson& value = member(object, key);
  return value.is_string() ? value.template get<std::string>() : fallback;
}

// Says what is wrong with a text that parse_whole_json() discards, and at which line and byte of the line.
std::string json_fault(std::string_view text);

}  // namespace moesaic
