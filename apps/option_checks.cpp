#include "option_checks.h"

#include <algorithm>

namespace moesaic::app {
namespace {

std::string joined(const std::vector<std::string>& words, const char* between) {
  std::string all;
  for (const std::string& word : words) all += (all.empty() ? "" : between) + word;
  return all;
}

}  // namespace

CLI::Validator minus_one_is_zero() {
  return {[](std::string& text) {
            if (text == "-1") text = "0";
            return std::string();
          },
          ""};
}

CLI::Validator one_of(const std::vector<std::string>& words) {
  return {[=](std::string& text) {
            if (std::find(words.begin(), words.end(), text) != words.end()) return std::string();
            return "'" + text + "' is not " + (words.size() > 1 ? "one of " : "") + joined(words, ", ");
          },
          "{" + joined(words, ",") + "}"};
}

}  // namespace moesaic::app
