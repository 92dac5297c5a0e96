// Decides by the Host and Origin fields which pages of a browser may reach the server.
#pragma once

#include <string_view>

#include "openai/api_error.h"
#include "server/http.h"
#include "server/options.h"

namespace moesaic::server {

// A name, an IPv4 address or an IPv6 address in brackets, and a port where there is one (RFC 3986).
bool valid_host(std::string_view host);

// --cors-origin may name *, null, or a scheme and a host with its port, such as https://page.example:8443,
// with a slash at the end or without.
bool valid_origin(std::string_view origin);

// --cors-origin names it.
bool is_cors_origin(std::string_view origin, const ServerOptions& options);

// Refuses requests of pages from other origins, and of pages whose host name was made to resolve to this
// machine (DNS rebinding).
openai::Refusal check_origin(const HttpRequest& request, const ServerOptions& options);

// The names of a list of header fields, if it is one and not too long to be repeated.
bool is_header_list(std::string_view list);

}  // namespace moesaic::server
