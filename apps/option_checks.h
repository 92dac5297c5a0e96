// Checks of an option's value. A wrong value gets a line that says what is allowed.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "base/strings.h"

namespace moesaic::app {

// From least to most. word: another value that is allowed; empty: none.
template <class Number>
CLI::Validator in_range(Number least, Number most, const std::string& word = {}) {
  return {[=](std::string& text) {
            if (!word.empty() && text == word) return std::string();
            const auto number = number_of<Number>(text);
            if (number && *number >= least && *number <= most) return std::string();
            return fmt::format("'{}' is not a {}number from {} to {}{}", text,
                               std::is_integral_v<Number> ? "whole " : "", least, most,
                               word.empty() ? "" : ", or " + word);
          },
          fmt::format("from {} to {}", least, most)};
}

// Takes -1, which other programs have for "as many as fit", as our 0.
CLI::Validator minus_one_is_zero();

// One of some words, of which help and completions tell.
CLI::Validator one_of(const std::vector<std::string>& words);

}  // namespace moesaic::app
