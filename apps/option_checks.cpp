#include "option_checks.h"

#include <algorithm>

namespace moesaic::app {

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
            return "'" + text + "' is not " + (words.size() > 1 ? "one of " : "") +
                   CLI::detail::join(words, ", ");
          },
          "{" + CLI::detail::join(words, ",") + "}"};
}

}  // namespace moesaic::app
