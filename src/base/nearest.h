// "Did you mean": the known name that a mistyped one is nearest to.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

// The least number of characters to insert, delete, replace or swap with their neighbour.
int edit_distance(std::string_view a, std::string_view b);

// Empty where none is near: a third of its characters may differ, and at least one. A known name of four
// characters and more that `name` begins with is near, too, as if two characters differed (--ctx of
// --ctx-size).
std::string nearest(std::string_view name, const std::vector<std::string>& known);

// The text with ASCII's letters in lower case.
std::string lower_case(std::string_view text);

// "; did you mean NAME?" or nothing.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);

}  // namespace moesaic
