#include "server/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/write.hpp>
#include <boost/beast/http/chunk_encode.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/write.hpp>

#include "openai/sampling_fields.h"
#include "server/handlers.h"
#include "server/router.h"

namespace moesaic::server {
namespace {

using boost::system::error_code;

constexpr size_t kFirstRead = 4096;  // bytes; what an idle connection holds
constexpr auto kLinger = std::chrono::seconds(3);

bool is_id(std::string_view id) {
  const auto fits = [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.'; };
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), fits);
}

std::string bearer(std::string_view authorization) {
  constexpr std::string_view kBearer = "Bearer ";
  return std::string(authorization.starts_with(kBearer) ? authorization.substr(kBearer.size()) : "");
}

}  // namespace

Connection::Connection(tcp::socket socket, App& app)
    : Exchange(socket.get_executor()), app_(app), timed_(std::make_shared<TimedSocket>(std::move(socket))) {
  error_code ignored;
  timed_->socket().non_blocking(true, ignored);
  timed_->socket().set_option(tcp::no_delay(true), ignored);
  const auto client = timed_->socket().remote_endpoint(ignored);
  request_.client = client.address().to_string();
}

// Between requests a connection may be idle for long; from the first byte on, the header has its own limit.
asio::awaitable<bool> Connection::fill_buffer() {
  if (buffer_.size() > 0) co_return true;
  timed_->expires_after(app_.options.limits.idle_time);
  error_code error;
  const size_t read = co_await timed_->socket().async_read_some(buffer_.prepare(kFirstRead), into(error));
  buffer_.commit(read);
  co_return !error;
}

asio::awaitable<bool> Connection::read_head() {
  keep_alive_ = false;
  record_ = {};
  const bool some = co_await fill_buffer();
  if (!some) co_return false;
  gone_ = {};
  record_.arrived = std::chrono::steady_clock::now();
  version_ = 11;
  request_.id = openai::new_id("req-");
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(app_.options.limits.header_bytes));
  parser_->body_limit(app_.options.limits.body_bytes);
  timed_->expires_after(app_.options.limits.header_time);
  error_code error;
  co_await http::async_read_header(timed_->socket(), buffer_, *parser_, into(error));
  if (error) co_return co_await refuse(error);
  take_head();
  co_return true;
}

void Connection::take_head() {
  const auto& head = parser_->get();
  const auto field = [&](auto name) { return std::string(head[name]); };
  version_ = head.version();
  keep_alive_ = head.keep_alive();
  head_only_ = head.method() == http::verb::head;
  request_.method = head_only_ ? "GET" : std::string(head.method_string());
  request_.path = std::string(head.target().substr(0, head.target().find('?')));
  request_.authorization = bearer(field(http::field::authorization));
  request_.origin = field(http::field::origin);
  const std::string id = field("X-Request-Id");
  if (is_id(id)) request_.id = id;
}

asio::awaitable<bool> Connection::send_continue() {
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  return write(asio::buffer(kContinue));
}

asio::awaitable<bool> Connection::read_body() {
  const auto expects = parser_->get()[http::field::expect];
  const bool waits = boost::beast::iequals(expects, "100-continue");
  openai::Refusal refusal = is_preflight() ? openai::Refusal() : check_access(request_, app_);
  if (refusal) {
    keep_alive_ = keep_alive_ && parser_->is_done();
    co_await send_error(*this, *refusal);
    co_return false;
  }
  if (waits && version_ >= 11) {
    const bool sent = co_await send_continue();
    if (!sent) co_return false;
  }
  timed_->expires_after(app_.options.limits.body_time);
  error_code error;
  if (!parser_->is_done()) co_await http::async_read(timed_->socket(), buffer_, *parser_, into(error));
  if (error) co_return co_await refuse(error);
  request_.body = std::move(parser_->get().body());
  co_return true;
}

// An answer to what could not be read, where there is one.
asio::awaitable<bool> Connection::refuse(const error_code& error) {
  keep_alive_ = false;
  openai::ApiError e{.http = 400, .message = fmt::format("not HTTP as it should be: {}", error.message())};
  if (timed_->timed_out()) {
    e = {.http = 408, .message = "the request took too long to arrive"};
  } else if (error == http::error::header_limit) {
    e = {.http = 431,
         .message = fmt::format("the header has more than {} bytes", app_.options.limits.header_bytes)};
  } else if (error == http::error::body_limit) {
    e = {.http = 413,
         .message = fmt::format("the body has more than {} bytes", app_.options.limits.body_bytes)};
  } else if (error.category() != http::make_error_code(http::error::bad_method).category() ||
             error == http::error::end_of_stream || error == http::error::partial_message) {
    co_return false;  // the client has gone
  }
  co_await send_error(*this, e);
  co_return false;
}

bool Connection::is_preflight() const { return request_.method == "OPTIONS" && !request_.origin.empty(); }

asio::awaitable<void> Connection::answer() {
  if (is_preflight()) {
    HttpAnswer allowed{.status = 204, .content_type = ""};
    allowed.headers = {{"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
                       {"Access-Control-Allow-Headers", "Authorization, Content-Type, X-Request-Id"},
                       {"Access-Control-Max-Age", "86400"}};
    co_await send(std::move(allowed));
    co_return;
  }
  timed_->expires_never();
  timed_->watch([this] { abandon(); });
  co_await route(*this, app_);
  timed_->forget();
}

template <typename Fields>
void Connection::set_common(Fields& fields) const {
  fields.set(http::field::server, "moesaic/" + app_.options.version);
  fields.set("X-Request-Id", request_.id);
  if (!record_.ignored_fields.empty()) fields.set("X-Moesaic-Ignored-Fields", record_.ignored_fields);
  const auto& origins = app_.options.cors_origins;
  const auto allowed = [&](const std::string& origin) { return origin == "*" || origin == request_.origin; };
  if (!request_.origin.empty() && std::any_of(origins.begin(), origins.end(), allowed)) {
    fields.set(http::field::access_control_allow_origin, request_.origin);
    fields.set(http::field::vary, "Origin");
  }
}

asio::awaitable<void> Connection::send(HttpAnswer answer) {
  if (app_.draining) keep_alive_ = false;
  http::response<http::string_body> response{static_cast<http::status>(answer.status), version_};
  set_common(response);
  if (!answer.content_type.empty()) response.set(http::field::content_type, answer.content_type);
  for (const auto& [name, value] : answer.headers) response.set(name, value);
  response.keep_alive(keep_alive_);
  response.body() = std::move(answer.body);
  response.prepare_payload();
  if (head_only_) response.body().clear();
  record_.status = answer.status;
  timed_->expires_after(app_.options.limits.write_time);
  error_code error;
  co_await http::async_write(timed_->socket(), response, into(error));
  if (error) keep_alive_ = false;
}

asio::awaitable<bool> Connection::write(asio::const_buffer bytes) {
  timed_->expires_after(app_.options.limits.write_time);
  error_code error;
  co_await asio::async_write(timed_->socket(), bytes, into(error));
  timed_->expires_never();
  if (error) {
    keep_alive_ = false;
    abandon();
  }
  co_return !error;
}

asio::awaitable<bool> Connection::begin_events() {
  chunked_ = version_ >= 11;
  keep_alive_ = keep_alive_ && chunked_ && !app_.draining;
  http::response<http::empty_body> response{http::status::ok, version_};
  set_common(response);
  response.set(http::field::content_type, "text/event-stream; charset=utf-8");
  response.set(http::field::cache_control, "no-cache");
  response.set("X-Accel-Buffering", "no");  // nginx is to pass events on as they come
  response.keep_alive(keep_alive_);
  response.chunked(chunked_);
  record_.status = 200;
  const std::string head = fmt::format("{}", (std::ostringstream() << response.base()).str());
  co_return co_await write(asio::buffer(head));
}

asio::awaitable<bool> Connection::send_events(std::string events) {
  if (chunked_) events = fmt::format("{:x}\r\n{}\r\n", events.size(), events);
  co_return co_await write(asio::buffer(events));
}

asio::awaitable<void> Connection::end_events() {
  static constexpr std::string_view kLastChunk = "0\r\n\r\n";
  if (chunked_) co_await write(asio::buffer(kLastChunk));
}

asio::awaitable<void> Connection::close() {
  error_code error;
  timed_->socket().shutdown(tcp::socket::shutdown_send, error);
  timed_->expires_after(kLinger);
  while (!error) co_await timed_->socket().async_read_some(buffer_.prepare(kFirstRead), into(error));
  timed_->expires_never();
  timed_->socket().close(error);
}

}  // namespace moesaic::server
