#include "base/whole_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace moesaic {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kTooLarge = "a number is too large";  // for a double

// Reads up to the first byte that does not fit.
class FaultFinder : public SilentSax<Json> {
 public:
  size_t at = 0;  // bytes read with the one that does not fit
  std::string_view fault = "not valid JSON";

  bool parse_error(size_t read, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    constexpr int kNumberOverflow = 406;
    if (error.id == kNumberOverflow) fault = kTooLarge;
    if (std::string_view(error.what()).find("ill-formed UTF-8") != std::string_view::npos)
      fault = "not UTF-8";
    at = read;
    return false;
  }
};

struct Extent {
  size_t depth = 0;
  int64_t members = 0;  // most in one object
  int64_t values = 0, strings = 0, containers = 0, comparisons = 0;
};

// Ends where the text is too deep.
Extent extent_of(std::string_view text, size_t most_depth) {
  Extent extent;
  std::vector<int64_t> open;  // members so far of each open bracket
  for (size_t i = 0; i < text.size() && extent.depth <= most_depth;) {
    const char c = text[i++];
    if (c == '"') {
      ++extent.strings;
      i = skip_json_string(text, i - 1);
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

Status check_count(int64_t count, int64_t most, const char* what, const std::string& name) {
  return count <= most ? Status() : invalid("{}: the JSON has more than {} {}", name, most, what);
}

}  // namespace

size_t skip_json_string(std::string_view text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) {
    if (text[at] == '\\') ++at;
  }
  return at + 1;
}

Status check_extent(std::string_view text, const JsonLimits& limits, const std::string& name) {
  const Extent extent = extent_of(text, limits.depth);
  if (extent.depth > limits.depth)
    return invalid("{}: the JSON is nested deeper than {} levels", name, limits.depth);
  RETURN_IF_ERROR(check_count(extent.containers, limits.containers, "objects and arrays", name));
  RETURN_IF_ERROR(check_count(extent.strings, limits.strings, "strings and names", name));
  RETURN_IF_ERROR(check_count(extent.values, limits.values, "values", name));
  if (extent.members > limits.members)
    return invalid("{}: a JSON object has more than {} members", name, limits.members);
  if (extent.comparisons > limits.comparisons)
    return invalid("{}: the JSON's objects have too many members", name);
  return {};
}

std::string json_fault(std::string_view text) {
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) return "empty where JSON is expected";
  FaultFinder finder;
  const std::string_view before_nul = text.substr(0, text.find('\0'));
  const bool only_a_nul = Json::sax_parse(before_nul.begin(), before_nul.end(), &finder);
  const size_t at = only_a_nul ? before_nul.size() + 1 : finder.at;
  if (at > text.size() && finder.fault != kTooLarge) return "not valid JSON: it ends too early";
  const std::string_view before = text.substr(0, std::max<size_t>(at, 1) - 1);
  const size_t line = before.rfind('\n');
  return fmt::format("{} at line {}, byte {}", finder.fault,
                     std::count(before.begin(), before.end(), '\n') + 1,
                     before.size() - (line == std::string_view::npos ? 0 : line + 1) + 1);
}

}  // namespace moesaic
