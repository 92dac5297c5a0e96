#include "server/origin.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <boost/beast/core/string.hpp>

#include "text/utf8.h"

namespace moesaic::server {
namespace {

using boost::beast::iequals;

constexpr size_t kLongestHost = 300;
constexpr size_t kLongestHeaderList = 4096;

bool is_port(std::string_view port) {
  return port.size() <= 5 && port.find_first_not_of("0123456789") == std::string_view::npos;
}

// Unreserved characters, sub-delims and percent-encoding.
bool is_name(std::string_view name) { return is_made_of(name, "-._~!$&'()*+,;=%"); }

struct HostPort {
  std::string_view host, port;  // host: without brackets; port: without the colon
  bool bracketed = false;
};

HostPort split(std::string_view text) {
  const size_t bracket = text.starts_with('[') ? text.find(']') : std::string_view::npos;
  const bool bracketed = bracket != std::string_view::npos;
  const size_t end = bracketed ? bracket + 1 : std::min(text.find(':'), text.size());
  const std::string_view rest = text.substr(end);
  return {.host = bracketed ? text.substr(1, bracket - 1) : text.substr(0, end),
          .port = rest.starts_with(':') ? rest.substr(1) : rest,
          .bracketed = bracketed};
}

asio::ip::address address_of(std::string_view text, boost::system::error_code& error) {
  asio::ip::address address = asio::ip::make_address(std::string(text), error);
  if (!error && address.is_v6() && address.to_v6().is_v4_mapped())
    address = asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
  return address;
}

bool is_local_name(std::string_view name) {
  constexpr std::string_view kSuffix = ".localhost";
  if (name.ends_with('.')) name.remove_suffix(1);
  if (name.size() > kSuffix.size()) name.remove_prefix(name.size() - kSuffix.size());
  return iequals(name, "localhost") || iequals(name, kSuffix);
}

// The names that mean this machine, the address that it listens on, and what --allowed-host adds. Where
// other machines reach the server, Host may be any IP address, as in Kubernetes' probes: DNS rebinding needs
// a name.
bool is_own_host(std::string_view text, const ServerOptions& options) {
  const HostPort given = split(text);
  const auto listed = [&](const std::string& entry) {
    return entry == "*" || iequals(entry, text) || iequals(entry, given.host);
  };
  if (is_local_name(given.host) ||
      std::any_of(options.allowed_hosts.begin(), options.allowed_hosts.end(), listed))
    return true;
  boost::system::error_code error, unbound;
  const auto address = address_of(given.host, error), own = address_of(options.address, unbound);
  return !error && (address.is_loopback() || address == own || !own.is_loopback());
}

bool checks_host(const ServerOptions& options) {
  boost::system::error_code error;
  return !options.allowed_hosts.empty() || address_of(options.address, error).is_loopback();
}

// The server's own page, by http or, behind a proxy that speaks TLS, by https.
bool is_same_origin(std::string_view origin, std::string_view host) {
  const size_t end = origin.find("://");
  if (end == std::string_view::npos) return false;
  const std::string_view scheme = origin.substr(0, end);
  const std::string_view usual = iequals(scheme, "https") ? "443" : "80";
  if (!iequals(scheme, "https") && !iequals(scheme, "http")) return false;
  const HostPort theirs = split(origin.substr(end + 3)), ours = split(host);
  const auto port = [&](const HostPort& h) { return h.port.empty() ? usual : h.port; };
  return !theirs.host.empty() && iequals(theirs.host, ours.host) && port(theirs) == port(ours);
}

// The page's files are the same for everybody. A browser sends an Origin with its scripts, also behind a
// proxy that gives the server a Host of its own: without them the page could not say what is refused.
bool is_page_file(const HttpRequest& request) { return request.path.starts_with("/page/"); }

openai::ApiError forbidden(std::string message, const char* code) {
  return {.http = 403, .message = std::move(message), .code = code};
}

}  // namespace

bool valid_host(std::string_view host) {
  const HostPort h = split(host);
  const size_t taken = h.host.size() + (h.bracketed ? 2 : 0);
  const bool colon = taken < host.size() && host[taken] == ':';
  if (host.size() > kLongestHost || (taken < host.size() && !colon) || !is_port(h.port)) return false;
  if (!h.bracketed) return is_name(h.host);
  boost::system::error_code error;
  asio::ip::make_address_v6(std::string(h.host), error);
  return !error && h.host.find('%') == std::string_view::npos;
}

bool valid_origin(std::string_view origin) {
  if (origin == "*" || origin == "null") return true;
  const size_t end = origin.find("://");
  if (end == 0 || end == std::string_view::npos) return false;
  std::string_view host = origin.substr(end + 3);
  if (host.ends_with('/')) host.remove_suffix(1);
  return valid_host(host);
}

bool is_cors_origin(std::string_view origin, const ServerOptions& options) {
  const auto names = [&](std::string_view allowed) {
    if (allowed.ends_with('/')) allowed.remove_suffix(1);
    return allowed == "*" || iequals(allowed, origin);
  };
  return !origin.empty() && std::any_of(options.cors_origins.begin(), options.cors_origins.end(), names);
}

openai::Refusal check_origin(const HttpRequest& request, const ServerOptions& options) {
  if (!request.host.empty() && checks_host(options) && !is_own_host(request.host, options))
    return forbidden(fmt::format("this server is not {}; start it with --allowed-host {} if it is to be",
                                 request.host, split(request.host).host),
                     "host_not_allowed");
  const bool known = request.origin.empty() || is_cors_origin(request.origin, options) ||
                     is_same_origin(request.origin, request.host);
  if (known || request.same_origin || is_page_file(request)) return {};
  return forbidden(
      fmt::format("pages of {} may not use this server; start it with --cors-origin {} if they are to",
                  request.origin, request.origin),
      "origin_not_allowed");
}

bool is_header_list(std::string_view list) {
  return list.size() <= kLongestHeaderList && is_made_of(list, "!#$%&'*+-.^_`|~, ");
}

}  // namespace moesaic::server
