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

bool is_key(const std::string& shown, const std::vector<std::string>& keys) {
  bool found = false;
  for (const std::string& key : keys) found |= same(shown, key);
  return found;
}

}  // namespace moesaic::server
