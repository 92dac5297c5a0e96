#include "text/limited_json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"

namespace moesaic::text {
namespace {

// The UTF-16 unit of an escape such as \u00e9 that begins the text; -1: none does.
int escaped_unit(std::string_view text) {
  if (text.size() < 6 || !text.starts_with("\\u")) return -1;
  int unit = -1;
  const auto [end, code] = std::from_chars(text.data() + 2, text.data() + 6, unit, 16);
  return code == std::errc() && end == text.data() + 6 ? unit : -1;
}

bool is_high(int unit) { return unit >= 0xD800 && unit <= 0xDBFF; }
bool is_low(int unit) { return unit >= 0xDC00 && unit <= 0xDFFF; }

// Finds an escaped half of a surrogate pair, which JavaScript writes for a text that it cut within a
// character; npos: there is none from there on. A backslash is only in strings, or in no JSON.
size_t find_lone_surrogate(std::string_view json, size_t at) {
  for (at = json.find('\\', at); at < json.size(); at = json.find('\\', at)) {
    const int unit = escaped_unit(json.substr(at));
    const bool pair = is_high(unit) && is_low(escaped_unit(json.substr(at + 6)));
    if (is_low(unit) || (is_high(unit) && !pair)) return at;
    at += pair ? 12 : 2;
  }
  return std::string_view::npos;
}

// With U+FFFD for each lone surrogate.
std::string without_lone_surrogates(std::string_view json, size_t first) {
  std::string text(json);
  for (size_t at = first; at != std::string::npos; at = find_lone_surrogate(text, at + 6))
    text.replace(at, 6, "\\ufffd");
  return text;
}

template <typename AnyJson>
Result<AnyJson> parse(std::string_view json, const std::string& name,
                      AnyJson (*read)(std::string_view) = parse_whole_json<AnyJson>) {
  const size_t lone = find_lone_surrogate(json, 0);
  if (lone != std::string_view::npos) return parse<AnyJson>(without_lone_surrogates(json, lone), name, read);
  AnyJson parsed = read(json);
  if (parsed.is_discarded()) return invalid("{}: {}", name, json_fault(json));
  return parsed;
}

std::string shortest(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value, std::chars_format::scientific).ptr};
}

// Up to 16 digits before the point and 5 zeros behind it are written out, as the ryu crate does.
std::string float_text(double value) {
  const std::string text = shortest(value);
  const size_t mark = text.find('e');
  const int exponent = std::atoi(text.c_str() + mark + 1);
  std::string mantissa(text, 0, mark);
  if (exponent < -5 || exponent > 15) return fmt::format("{}e{}", mantissa, exponent);
  const int digits = static_cast<int>(mantissa.size()) - (value < 0 ? 1 : 0) - (mantissa.size() > 2 ? 1 : 0);
  return fmt::format("{:.{}f}", value, std::max(1, digits - 1 - exponent));
}

bool is_integer(std::string_view number) { return number.find_first_of(".eE") == std::string_view::npos; }

// A number's digits without its exponent and the zeros around them.
std::string significant(std::string_view number) {
  std::string digits;
  for (const char c : number.substr(0, number.find_first_of("eE"))) {
    if (c >= (digits.empty() ? '1' : '0') && c <= '9') digits += c;
  }
  digits.resize(digits.find_last_not_of('0') + 1);
  return digits;
}

// Builds values member by member.
class ExactReader : public nlohmann::json_sax<OrderedJson> {
 public:
  OrderedJson root;

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t& text) override {
    // Integers come here where they have more than 64 bits.
    if (!is_integer(text) && significant(text) == significant(shortest(value))) return put(value);
    return put(OrderedJson::binary({text.begin(), text.end()}));
  }
  bool string(string_t& value) override { return put(std::move(value)); }
  bool binary(binary_t& /*value*/) override { return false; }
  bool start_object(size_t /*size*/) override { return open(OrderedJson::object()); }
  bool start_array(size_t /*size*/) override { return open(OrderedJson::array()); }
  bool end_object() override { return open_.pop_back(), true; }
  bool end_array() override { return open_.pop_back(), true; }
  bool key(string_t& name) override { return key_ = std::move(name), true; }
  bool parse_error(size_t /*at*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    return false;
  }

 private:
  OrderedJson* place(OrderedJson value) {
    if (open_.empty()) return &(root = std::move(value));
    OrderedJson& in = *open_.back();
    if (in.is_object()) return &(in[key_] = std::move(value));
    in.push_back(std::move(value));
    return &in.back();
  }
  bool put(OrderedJson value) { return place(std::move(value)) != nullptr; }
  bool open(OrderedJson empty) { return open_.push_back(place(std::move(empty))), true; }

  std::vector<OrderedJson*> open_;
  std::string key_;
};

std::string kept_text(const OrderedJson& number) {
  const auto& bytes = number.get_binary();
  return {bytes.begin(), bytes.end()};
}

void append_compact(const OrderedJson& value, std::string& text) {
  if (value.is_object() || value.is_array()) {
    text += value.is_object() ? '{' : '[';
    for (auto member = value.begin(); member != value.end(); ++member) {
      if (member != value.begin()) text += ',';
      if (value.is_object()) text += OrderedJson(member.key()).dump() + ':';
      append_compact(*member, text);
    }
    text += value.is_object() ? '}' : ']';
  } else {
    text += value.is_number_float() ? float_text(value.get<double>())
            : value.is_binary()     ? kept_text(value)
                                    : value.dump();
  }
}

}  // namespace

Result<Json> parse_limited_json(std::string_view json, const std::string& name) {
  RETURN_IF_ERROR(check_extent(json, {.depth = kMaxJsonDepth}, name));
  return parse<Json>(json, name);
}

Result<OrderedJson> parse_ordered_json(std::string_view json, const std::string& name) {
  RETURN_IF_ERROR(check_extent(json, kOrderedLimits, name));
  return parse<OrderedJson>(json, name);
}

Result<OrderedJson> parse_exact_json(std::string_view json, const std::string& name, size_t most_depth) {
  JsonLimits limits = kOrderedLimits;
  limits.depth = most_depth;
  RETURN_IF_ERROR(check_extent(json, limits, name));
  return parse<OrderedJson>(json, name, exact_json);
}

OrderedJson exact_json(std::string_view json) {
  ExactReader reader;
  const bool read =
      json.find('\0') == std::string_view::npos && OrderedJson::sax_parse(json.begin(), json.end(), &reader);
  return read ? std::move(reader.root) : OrderedJson(OrderedJson::value_t::discarded);
}

std::optional<double> double_of(const OrderedJson& value) {
  if (value.is_number()) return value.get<double>();
  if (value.is_binary()) return std::strtod(kept_text(value).c_str(), nullptr);
  return {};
}

bool has_long_integer(std::string_view json) {
  constexpr size_t kAlwaysExact = 15;  // digits
  for (size_t at = 0, end = 0; at < json.size(); at = end) {
    end = json[at] == '"'
              ? skip_json_string(json, at)
              : std::max(at + 1, std::min(json.size(), json.find_first_not_of("+-.0123456789eE", at)));
    if (json[at] == '"' || end - at <= kAlwaysExact) continue;
    const OrderedJson number = exact_json(json.substr(at, end - at));
    if (!number.is_binary()) continue;
    const double value = *double_of(number);
    // JavaScript writes what it has of 64-bit bounds as integers that a double holds.
    if (value == std::trunc(value) && significant(kept_text(number)) != significant(shortest(value)))
      return true;
  }
  return false;
}

JsonSchema json_schema(OrderedJson value) {
  return JsonSchema(std::make_shared<const ParsedJson>(ParsedJson{std::move(value)}));
}

std::string compact_json(const OrderedJson& value) {
  std::string text;
  append_compact(value, text);
  return text;
}

Status check_strings(const OrderedJson& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    const auto at = object.find(key);
    if (at != object.end() && !at->is_null() && !at->is_string()) return invalid("{} is not a string", key);
  }
  return {};
}

}  // namespace moesaic::text

namespace moesaic {

Result<JsonSchema> JsonSchema::parse(std::string_view json, const std::string& name) {
  ASSIGN_OR_RETURN(text::OrderedJson parsed, text::parse_exact_json(json, name));
  return text::json_schema(std::move(parsed));
}

}  // namespace moesaic
