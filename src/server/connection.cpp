#include "server/connection.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <array>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/write.hpp>
#include <sstream>

#include "openai/sampling_fields.h"
#include "server/client.h"
#include "server/handlers.h"
#include "server/keys.h"
#include "server/origin.h"
#include "server/router.h"
#include "text/utf8.h"

namespace moesaic::server {
namespace {

using boost::system::error_code;

// The system buffers no more than so many bytes that are not sent. By default it takes megabytes that the
// client has not read, and asks for more only when a third of them has gone.
using NotSent = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_NOTSENT_LOWAT>;

constexpr size_t kFirstRead = 4096;  // bytes; what an idle connection holds
constexpr size_t kBodyRead = 16384;
constexpr auto kLinger = std::chrono::seconds(3);

bool is_id(std::string_view id) { return id.size() <= 128 && is_made_of(id, "-_."); }

// The key of an Authorization field. The scheme's name may be written in any case.
std::string bearer(std::string_view authorization) {
  constexpr std::string_view kBearer = "bearer";
  const std::string_view scheme = authorization.substr(0, kBearer.size());
  const size_t key = authorization.find_first_not_of(" \t", scheme.size());
  if (!boost::beast::iequals(scheme, kBearer) || key == scheme.size() || key == std::string_view::npos)
    return {};
  return std::string(authorization.substr(key));
}

// RFC 9110, section 15.5.16.
openai::Refusal check_content(std::string_view coding) {
  if (coding.empty()) return {};
  return openai::ApiError{
      .http = 415,
      .message = fmt::format("Content-Encoding: {}: compressed bodies are not read; send the JSON as it is",
                             coding.substr(0, 40)),
      .code = "unsupported_content_encoding"};
}

template <typename Fields>
std::string text_of(const Fields& fields) {
  return (std::ostringstream() << fields.base()).str();
}

}  // namespace

Connection::Connection(tcp::socket socket, App& app)
    : HttpExchange(socket.get_executor(), app.bodies),
      app_(app),
      timed_(std::make_shared<TimedSocket>(std::move(socket))) {
  error_code ignored;
  timed_->socket().non_blocking(true, ignored);
  timed_->socket().set_option(tcp::no_delay(true), ignored);
  timed_->socket().set_option(NotSent(kLeastRead), ignored);
  const auto client = timed_->socket().remote_endpoint(ignored);
  request_.client = client.address().to_string();
  request_.network = network_of(client.address());
}

// False: nothing has come, and timed_ knows whether the time was over.
asio::awaitable<bool> Connection::read_more(size_t bytes) {
  error_code error;
  const size_t read = co_await timed_->socket().async_read_some(buffer_.prepare(bytes), into(error));
  buffer_.commit(read);
  co_return !error && !timed_->timed_out();
}

// Empty lines before a request are no part of it (RFC 9112, section 2.2).
bool Connection::has_begun() {
  while (received().starts_with("\r\n")) buffer_.consume(2);
  return !received().empty() && received() != "\r";
}

// Between requests a connection may be idle for long; the first one, and a header from its first byte on,
// have their own limit. An idle connection ends when the server begins to shut down: a proxy that keeps it
// would send requests here that another server can take.
asio::awaitable<bool> Connection::await_request() {
  if (buffer_.capacity() > 2 * kFirstRead) buffer_.shrink_to_fit();
  if (has_begun()) co_return true;
  const Limits& limits = app_.options.limits;
  const bool idle = !std::exchange(first_, false);
  timed_->expires_after(idle ? limits.idle_time : limits.header_time);
  const std::stop_token at_end = idle ? app_.draining.get_token() : std::stop_token();
  const std::stop_callback at_drain(at_end, timed_->over_now());
  bool some = true;
  while (some && !has_begun()) some = co_await read_more(kFirstRead);
  co_return has_begun();  // bytes may have come at the last moment
}

void Connection::begin_request() {
  gone_ = {};
  record_.arrived = std::chrono::steady_clock::now();
  version_ = 11;
  head_only_ = false;
  drop_body();
  request_ = {.id = openai::new_id("req-"),
              .client = std::move(request_.client),
              .network = std::move(request_.network)};
  parser_.emplace(app_.options.limits, body_);
}

asio::awaitable<bool> Connection::read_head() {
  keep_alive_ = false;
  record_ = {};
  const bool begun = co_await await_request();
  if (!begun) co_return false;
  begin_request();
  timed_->expires_after(app_.options.limits.header_time);
  co_return co_await receive_head();
}

asio::awaitable<bool> Connection::receive_head() {
  HeadScan scan;
  for (bool more = true; more; more = co_await read_more(kFirstRead)) {
    const HeadScan::Found found = scan.scan(received());
    if (scan.size() <= app_.options.limits.header_bytes && found == HeadScan::Found::kNothing) continue;
    head_only_ = received().starts_with("HEAD ");
    const bool taken = parser_->take_head(scan, received());
    if (taken) {
      buffer_.consume(scan.size());
      take_head();
    } else {
      take_refused_head();
      co_await refuse(parser_->refusal());
    }
    co_return taken;
  }
  co_return co_await not_received();
}

// The form of an error depends on the API and on the origin; the log has the method and the path.
void Connection::take_refused_head() {
  const std::string_view line = received().substr(0, received().find('\r'));
  const size_t target = std::min(line.find(' '), line.size());
  const std::string_view path = line.substr(target, line.find_first_of(" ?", target + 1) - target);
  constexpr size_t kLongestMethod = 32, kLongestPath = 256;
  if (target <= kLongestMethod && is_made_of(line.substr(0, target), ""))
    request_.method = line.substr(0, target);
  const auto shows = [](unsigned char c) { return c >= ' ' && c < 0x7F; };
  if (path.starts_with(" /") && path.size() <= kLongestPath && std::ranges::all_of(path, shows))
    request_.path = path.substr(1);
  RequestHead& head = parser_->head();
  request_.origin = std::move(head.origin);
  request_.anthropic = head.anthropic;
  if (is_id(head.id)) request_.id = std::move(head.id);
}

void Connection::take_head() {
  RequestHead& head = parser_->head();
  version_ = head.version;
  keep_alive_ = parser_->keep_alive();
  request_.method = head_only_ ? "GET" : std::move(head.method);
  request_.path = std::move(head.path);
  request_.query = std::move(head.query);
  request_.authorization = bearer(head.authorization);
  // Some clients send both fields, and a token of another service in one of them.
  const std::vector<std::string>& keys = app_.options.api_keys;
  if (request_.authorization.empty() || (!is_key(request_.authorization, keys) && is_key(head.api_key, keys)))
    request_.authorization = std::move(head.api_key);
  request_.host = std::move(head.host);
  request_.origin = std::move(head.origin);
  request_.same_origin = head.fetch_site == "same-origin";
  request_.anthropic = head.anthropic;
  if (is_id(head.id)) request_.id = std::move(head.id);
  body_.set_client(client_of(request_, app_.options));
}

asio::awaitable<bool> Connection::send_continue() {
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  return write(kContinue);
}

asio::awaitable<bool> Connection::read_body() {
  openai::Refusal refusal = check_origin(request_, app_.options);
  if (!refusal && !is_preflight()) refusal = check_access(request_, app_);
  if (!refusal && !parser_->is_done()) refusal = check_content(parser_->head().content_coding);
  if (refusal) {
    keep_alive_ = keep_alive_ && parser_->is_done();
    HttpAnswer answer = error_answer(*refusal, request_);
    if (refusal->http == 405) answer.headers.emplace_back("Allow", methods_of(request_.path));
    co_await send(std::move(answer));
    co_return false;
  }
  if (version_ >= 11 && boost::beast::iequals(parser_->head().expect, "100-continue")) {
    const bool sent = co_await send_continue();
    if (!sent) co_return false;
  }
  timed_->expires_after(app_.options.limits.body_time);
  // The end waits for no body.
  const std::stop_callback at_drain(app_.draining.get_token(), timed_->over_now());
  const bool whole = co_await receive_body();
  co_return whole;
}

asio::awaitable<bool> Connection::receive_body() {
  while (!parser_->is_done()) {
    const size_t used = buffer_.size() > 0 ? parser_->take_body(received()) : 0;
    buffer_.consume(used);
    if (request_.method != "POST") drop_body();  // no handler reads it, and it may come without a key
    if (parser_->refusal()) {
      co_await refuse(parser_->refusal());
      co_return false;
    }
    if (used > 0) continue;
    const bool more = co_await read_more(kBodyRead);
    if (!more) co_return co_await not_received();
  }
  co_return true;
}

// The connection ends with it: nobody knows where the next request would begin.
asio::awaitable<void> Connection::refuse(const openai::Refusal& refusal) {
  keep_alive_ = false;
  drop_body();
  co_await send_error(*this, *refusal);
}

asio::awaitable<bool> Connection::not_received() {
  keep_alive_ = false;
  if (!timed_->timed_out()) co_return false;  // the client has gone
  openai::Refusal late = openai::ApiError{.http = 408, .message = "the request took too long to arrive"};
  if (app_.draining.stop_requested()) late = shutting_down();
  co_await refuse(late);
  co_return false;
}

// HAProxy's checks send OPTIONS without an Origin, so it is no condition.
bool Connection::is_preflight() const { return request_.method == "OPTIONS"; }

HttpAnswer Connection::preflight() const {
  HttpAnswer answer{.status = 204, .content_type = ""};
  answer.headers = {{"Allow", "GET, POST, DELETE, OPTIONS"}};
  if (!is_cors_origin(request_.origin, app_.options)) return answer;
  const RequestHead& head = parser_->head();
  answer.headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
  answer.headers.emplace_back(
      "Access-Control-Allow-Headers",
      is_header_list(head.asked_headers) ? head.asked_headers : "Authorization, Content-Type, X-Request-Id");
  if (head.asked_network == "true")
    answer.headers.emplace_back("Access-Control-Allow-Private-Network", "true");
  answer.headers.emplace_back("Access-Control-Max-Age", "86400");
  return answer;
}

asio::awaitable<void> Connection::answer() {
  if (is_preflight()) {
    HttpAnswer allowed = preflight();
    co_await send(std::move(allowed));
    co_return;
  }
  timed_->expires_never();
  timed_->watch([this] { abandon(); });
  answered_ = false;
  co_await route(*this, app_);
  timed_->forget();
  keep_alive_ = keep_alive_ && answered_;  // the next answer would be taken for this request's
}

void Connection::set_common(Response& response) const {
  response.set(http::field::server, "moesaic/" + app_.options.version);
  response.set(http::field::date,
               fmt::format("{:%a, %d %b %Y %H:%M:%S} GMT", fmt::gmtime(std::time(nullptr))));
  response.set("X-Request-Id", request_.id);
  if (request_.anthropic) response.set("Request-Id", request_.id);  // where Anthropic's clients look for it
  if (!record_.ignored_fields.empty()) response.set("X-Moesaic-Ignored-Fields", record_.ignored_fields);
  if (!record_.schema_notes.empty()) response.set("X-Moesaic-Schema-Notes", record_.schema_notes);
  if (app_.options.cors_origins.empty()) return;
  response.set(http::field::vary, "Origin, Access-Control-Request-Headers");
  if (!is_cors_origin(request_.origin, app_.options)) return;
  response.set(http::field::access_control_allow_origin, request_.origin);
  response.set(http::field::access_control_expose_headers,
               "X-Request-Id, Retry-After, X-Moesaic-Ignored-Fields, X-Moesaic-Schema-Notes, *");
}

asio::awaitable<void> Connection::send(HttpAnswer answer) {
  HeldBytes unread(app_.bodies, client_of(request_, app_.options));
  // A client that is alone may always have half of all, so no answer is too large for ever.
  const size_t counted = std::min(answer.body.size(), app_.bodies.limit() / 2);
  if (!head_only_ && !unread.hold_unread(counted)) answer = error_answer(bodies_full(), request_);
  if (app_.draining.stop_requested()) keep_alive_ = false;
  Response response{static_cast<http::status>(answer.status), version_};
  set_common(response);
  if (!answer.content_type.empty()) response.set(http::field::content_type, answer.content_type);
  for (const auto& [name, value] : answer.headers) response.set(name, value);
  response.keep_alive(keep_alive_);
  if (answer.status != 204) response.content_length(answer.body.size());
  record_.status = answer.status;
  const std::string head = text_of(response);
  if (head_only_) answer.body.clear();
  answered_ = co_await write(head, answer.body);
}

asio::awaitable<bool> Connection::write(std::string_view bytes, std::string_view more) {
  error_code error;
  timed_->expires_after(app_.options.limits.write_time);
  for (size_t taken = 0; !error && !timed_->timed_out() && bytes.size() + more.size() > 0;) {
    const std::array buffers = {asio::buffer(bytes), asio::buffer(more)};
    const size_t sent = co_await timed_->socket().async_write_some(buffers, into(error));
    const size_t first = std::min(sent, bytes.size());
    bytes.remove_prefix(first), more.remove_prefix(sent - first);
    taken += sent;
    if (timed_->timed_out() || taken < kLeastRead) continue;
    taken = 0;
    timed_->expires_after(app_.options.limits.write_time);
  }
  timed_->expires_never();
  const bool written = bytes.size() + more.size() == 0;
  if (!written) {
    record_.cut_off = record_.cut_off || timed_->timed_out();
    keep_alive_ = false;
    abandon();
  }
  co_return written;
}

asio::awaitable<bool> Connection::begin_events(std::string_view content_type) {
  chunked_ = version_ >= 11;
  keep_alive_ = keep_alive_ && chunked_ && !app_.draining.stop_requested();
  Response response{http::status::ok, version_};
  set_common(response);
  response.set(http::field::content_type, content_type);
  response.set(http::field::cache_control, "no-cache");
  response.set("X-Accel-Buffering", "no");  // nginx is to pass events on as they come
  response.keep_alive(keep_alive_);
  response.chunked(chunked_);
  record_.status = 200;
  const std::string head = text_of(response);
  co_return co_await write(head);
}

asio::awaitable<bool> Connection::send_events(std::string events) {
  if (chunked_) events = fmt::format("{:x}\r\n{}\r\n", events.size(), events);
  co_return co_await write(events);
}

asio::awaitable<void> Connection::end_events() {
  static constexpr std::string_view kLastChunk = "0\r\n\r\n";
  if (chunked_) answered_ = co_await write(kLastChunk);
}

asio::awaitable<void> Connection::close() {
  error_code error;
  timed_->socket().shutdown(tcp::socket::shutdown_send, error);
  timed_->expires_after(kLinger);
  while (!error && !timed_->timed_out())
    co_await timed_->socket().async_read_some(buffer_.prepare(kFirstRead), into(error));
  timed_->expires_never();
  timed_->socket().close(error);
}

}  // namespace moesaic::server
