#include "server/keys.h"

namespace moesaic::server {
namespace {

bool same(const std::string& shown, const std::string& key) {
  volatile unsigned char differs = shown.size() == key.size() ? 0 : 1;
  for (size_t i = 0; i < shown.size(); ++i)
    differs = differs | (shown[i] ^ (key.empty() ? 1 : key[i % key.size()]));
  return differs == 0;
}

}  // namespace

std::optional<size_t> key_of(const std::string& shown, const std::vector<std::string>& keys) {
  size_t found = keys.size();
  for (size_t i = keys.size(); i-- > 0;) found = same(shown, keys[i]) ? i : found;
  return found < keys.size() ? std::optional(found) : std::nullopt;
}

bool is_key(const std::string& shown, const std::vector<std::string>& keys) {
  return key_of(shown, keys).has_value();
}

}  // namespace moesaic::server
