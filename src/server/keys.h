// API keys.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace moesaic::server {

// Finds the key that was shown, the first of equal ones. Its time depends on the lengths and not on how much
// of a key is right.
std::optional<size_t> key_of(const std::string& shown, const std::vector<std::string>& keys);
bool is_key(const std::string& shown, const std::vector<std::string>& keys);

}  // namespace moesaic::server
