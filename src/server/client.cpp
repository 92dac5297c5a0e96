#include "server/client.h"

#include <fmt/format.h>

#include <boost/asio/ip/address_v6.hpp>
#include <optional>

#include "server/keys.h"

namespace moesaic::server {

std::string network_of(const asio::ip::address& address) {
  if (!address.is_v6()) return address.to_string();
  const asio::ip::address_v6 v6 = address.to_v6();
  if (v6.is_v4_mapped()) return asio::ip::make_address_v4(asio::ip::v4_mapped, v6).to_string();
  auto bytes = v6.to_bytes();
  const bool local = v6.is_loopback() || v6.is_link_local() || (bytes[0] & 0xFE) == 0xFC;
  if (local) return v6.to_string();
  std::fill(bytes.begin() + 8, bytes.end(), 0);
  return asio::ip::address_v6(bytes).to_string() + "/64";
}

std::string client_of(const HttpRequest& request, const ServerOptions& options) {
  if (options.api_keys.size() < 2) return request.network;
  const std::optional<size_t> key = key_of(request.authorization, options.api_keys);
  return key ? fmt::format("key {}", *key) : request.network;
}

}  // namespace moesaic::server
