// Tells clients apart: the requests of one share places, bytes and connections, and take turns with those of
// others.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <string>

#include "server/http.h"
#include "server/options.h"

namespace moesaic::server {

// The client as far as the address tells, before a request is read. One subscriber has all addresses of an
// IPv6 network of 64 bits, so these are one client, but for the networks that machines of a household or a
// company share (link local, unique local).
std::string network_of(const asio::ip::address& address);

// With several API keys the key, wherever it is used from, else the network.
std::string client_of(const HttpRequest& request, const ServerOptions& options);

}  // namespace moesaic::server
