// API keys.
#pragma once

#include <string>
#include <vector>

namespace moesaic::server {

// In a time that depends on the lengths and not on how much of a key is right.
bool is_key(const std::string& shown, const std::vector<std::string>& keys);

}  // namespace moesaic::server
