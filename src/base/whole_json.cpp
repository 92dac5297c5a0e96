#include "base/whole_json.h"

#include <fmt/format.h>

#include <algorithm>

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

}  // namespace

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
