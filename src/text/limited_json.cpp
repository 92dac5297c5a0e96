#include "text/limited_json.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/whole_json.h"

namespace moesaic::text {
namespace {

// Counts what costs time and memory, without building anything. For text that is no JSON the counts may be
// anything.
struct Extent {
  size_t depth = 0;
  int64_t members = 0;  // most in one object
  int64_t values = 0, strings = 0, containers = 0, comparisons = 0;
};

// Past a string's closing quote.
size_t skip_string(std::string_view json, size_t at) {
  for (++at; at < json.size() && json[at] != '"'; ++at) {
    if (json[at] == '\\') ++at;
  }
  return at + 1;
}

Extent extent_of(std::string_view json) {
  Extent extent;
  std::vector<int64_t> open;  // members so far of each open bracket
  for (size_t i = 0; i < json.size() && extent.depth <= kMaxJsonDepth;) {
    const char c = json[i++];
    if (c == '"') {
      ++extent.strings;
      i = skip_string(json, i - 1);
    } else if (c == '[' || c == '{') {
      ++extent.containers;
      open.push_back(0);
      extent.depth = std::max(extent.depth, open.size());
    } else if ((c == ']' || c == '}') && !open.empty()) {
      open.pop_back();
    } else if (c == ',') {
      ++extent.values;
    } else if (c == ':' && !open.empty()) {
      extent.comparisons += open.back();
      extent.members = std::max(extent.members, ++open.back());
    }
  }
  extent.values += extent.containers;
  return extent;
}

Status check_depth(const Extent& extent, const std::string& name) {
  if (extent.depth <= kMaxJsonDepth) return {};
  return invalid("{}: the JSON is nested deeper than {} levels", name, kMaxJsonDepth);
}

Status check_all(const Extent& extent, const std::string& name) {
  RETURN_IF_ERROR(check_depth(extent, name));
  const auto too_many = [&](int64_t count, int64_t most, const char* what) {
    return count <= most ? Status() : invalid("{}: the JSON has more than {} {}", name, most, what);
  };
  RETURN_IF_ERROR(too_many(extent.containers, kMaxJsonContainers, "objects and arrays"));
  RETURN_IF_ERROR(too_many(extent.strings, kMaxJsonStrings, "strings and names"));
  RETURN_IF_ERROR(too_many(extent.values, kMaxJsonValues, "values"));
  if (extent.members > kMaxOrderedMembers)
    return invalid("{}: a JSON object has more than {} members", name, kMaxOrderedMembers);
  if (extent.comparisons > kMaxMemberComparisons)
    return invalid("{}: the JSON has too many large objects (of hundreds of members)", name);
  return {};
}

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
Result<AnyJson> parse(std::string_view json, const std::string& name) {
  const size_t lone = find_lone_surrogate(json, 0);
  if (lone != std::string_view::npos) return parse<AnyJson>(without_lone_surrogates(json, lone), name);
  AnyJson parsed = parse_whole_json<AnyJson>(json);
  if (parsed.is_discarded()) return invalid("{}: {}", name, json_fault(json));
  return parsed;
}

// Up to 16 digits before the point and 5 zeros behind it are written out, as the ryu crate does.
std::string float_text(double value) {
  char shortest[32];
  const auto end =
      std::to_chars(shortest, shortest + sizeof shortest, value, std::chars_format::scientific).ptr;
  const std::string_view text(shortest, end - shortest);
  const size_t mark = text.find('e');
  const int exponent = std::atoi(std::string(text.substr(mark + 1)).c_str());
  std::string mantissa(text.substr(0, mark));
  if (exponent < -5 || exponent > 15) return fmt::format("{}e{}", mantissa, exponent);
  const int digits = static_cast<int>(mantissa.size()) - (value < 0 ? 1 : 0) - (mantissa.size() > 2 ? 1 : 0);
  return fmt::format("{:.{}f}", value, std::max(1, digits - 1 - exponent));
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
    text += value.is_number_float() ? float_text(value.get<double>()) : value.dump();
  }
}

}  // namespace

Result<Json> parse_limited_json(std::string_view json, const std::string& name) {
  RETURN_IF_ERROR(check_depth(extent_of(json), name));
  return parse<Json>(json, name);
}

Result<OrderedJson> parse_ordered_json(std::string_view json, const std::string& name) {
  RETURN_IF_ERROR(check_all(extent_of(json), name));
  return parse<OrderedJson>(json, name);
}

bool has_exact_integers(std::string_view json) {
  constexpr std::string_view kDigits = "0123456789";
  for (size_t i = 0; i < json.size();) {
    if (json[i] == '"') {
      i = skip_string(json, i);
      continue;
    }
    const size_t begin = i, end = std::min(json.find_first_not_of(kDigits, i), json.size());
    i = end + 1;
    uint64_t magnitude = 0;
    const bool negative = begin > 0 && json[begin - 1] == '-',
               integer = end == json.size() || !std::strchr(".eE", json[end]);
    const auto read = std::from_chars(json.data() + begin, json.data() + end, magnitude);
    const bool fits =
        read.ec != std::errc::result_out_of_range && (!negative || magnitude <= uint64_t{1} << 63);
    if (integer && !fits) return false;
    if (!integer) i = std::min(json.find_first_not_of("0123456789+-.eE", end), json.size());
  }
  return true;
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
  ASSIGN_OR_RETURN(text::OrderedJson parsed, text::parse_ordered_json(json, name));
  return text::json_schema(std::move(parsed));
}

}  // namespace moesaic
