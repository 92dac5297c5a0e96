// nlohmann's parser, without its habit of ending at a NUL byte: what stands behind one would go unread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace moesaic {

// Values of any kind that JSON of a file may have. gpt-oss's tokenizer.json has 1.5 million. Each takes up to
// 100 bytes, of which the text may have three.
inline constexpr int64_t kMostFileValues = 4'000'000;

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

// Says what is wrong with a text that parse_whole_json() discards, and at which line and byte of the line.
std::string json_fault(std::string_view text);

}  // namespace moesaic
