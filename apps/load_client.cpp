#include "load_client.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/error.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <stdexcept>
#include <utility>

#include "base/error.h"
#include "base/seconds.h"
#include "load_events.h"

namespace moesaic::app {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::use_awaitable;
using tcp = asio::ip::tcp;
using Clock = std::chrono::steady_clock;
using Endpoints = tcp::resolver::results_type;
using Stream = boost::beast::tcp_stream;

constexpr int kMostInterim = 16;                         // answers 1xx before the one that counts
constexpr size_t kMostTokenBytes = 256;                  // the longest token of o200k has 128
constexpr size_t kMostExtraBytes = 1 << 20;              // an answer longer than was asked for has these
constexpr size_t kMostRefusal = 8192;                    // bytes of a body that are read
constexpr auto kPause = std::chrono::milliseconds(100);  // for a server that refuses at once

class Load {
 public:
  Load(const LoadOptions& options, Endpoints endpoints) : o_(options), endpoints_(std::move(endpoints)) {
    if (o_.rate > 0) result_.requests.resize(o_.requests);
  }
  LoadResult run();

 private:
  asio::awaitable<void> closed_loop();
  asio::awaitable<void> open_loop();
  asio::awaitable<void> one(int index);
  asio::awaitable<void> ask(Stream& stream, Timeline& timeline, std::string body);
  bool more() const;
  asio::awaitable<void> read_events(Stream& stream, Timeline& timeline) const;
  std::string body_of(int prompt) const;
  double now() const { return seconds_since(begin_); }
  Clock::duration patience() const {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(o_.timeout));
  }
  std::string words_of(const boost::system::error_code& code) const;

  const LoadOptions& o_;
  Endpoints endpoints_;
  asio::io_context io_;
  LoadResult result_ = {};
  Clock::time_point begin_;
};

std::string Load::body_of(int prompt) const {
  return nlohmann::json{{"model", o_.model},
                        {"prompt", o_.prompt(prompt)},
                        {"max_tokens", o_.max_tokens},
                        {"temperature", 0},
                        {"ignore_eos", true},
                        {"skip_special_tokens", false},
                        {"stream", true},
                        {"stream_options", {{"include_usage", true}}}}
      .dump();
}

// Takes what has come now. A usage before further text does not count that text.
void take_events(LoadEventLines& lines, std::string_view bytes, double now, Timeline& timeline) {
  if (!lines.add(bytes)) throw std::runtime_error("a line of the answer has no end");
  for (std::string data; lines.next(data);) {
    LoadEvent event = read_load_event(data);
    if (!event.error.empty()) throw std::runtime_error(event.error);
    if (!event.text.empty()) timeline.events.push_back(now);
    if (event.usage || !event.text.empty()) timeline.usage = event.usage.value_or(0);
    timeline.text += event.text;
    timeline.complete |= event.last;
  }
}

// A refusal in words: its status, and what comes of its body within a second.
asio::awaitable<std::string> refusal(Stream& stream, boost::beast::flat_buffer& buffer,
                                     http::response_parser<http::buffer_body>& parser) {
  std::string body(kMostRefusal, '\0');
  parser.get().body().data = body.data();
  parser.get().body().size = body.size();
  stream.expires_after(std::chrono::seconds(1));
  boost::system::error_code ignored;
  co_await http::async_read(stream, buffer, parser, asio::redirect_error(use_awaitable, ignored));
  body.resize(body.size() - parser.get().body().size);
  const std::string status = fmt::format("HTTP {}", parser.get().result_int());
  const std::string said = body.starts_with('{') ? read_load_event(body).error : "";
  co_return said.empty() ? status : status + ": " + said;
}

asio::awaitable<void> Load::read_events(Stream& stream, Timeline& timeline) const {
  boost::beast::flat_buffer buffer;
  std::optional<http::response_parser<http::buffer_body>> parser;
  for (int i = 0; !parser || (parser->get().result_int() < 200 && i < kMostInterim); ++i) {
    parser.emplace();
    parser->body_limit(boost::none);
    co_await http::async_read_header(stream, buffer, *parser, use_awaitable);
  }
  if (parser->get().result() != http::status::ok) {
    const std::string reason = co_await refusal(stream, buffer, *parser);
    throw std::runtime_error(reason);
  }
  char part[8192];
  LoadEventLines lines;
  while (!parser->is_done()) {
    parser->get().body().data = part;
    parser->get().body().size = sizeof part;
    boost::system::error_code error;
    stream.expires_after(patience());
    co_await http::async_read_some(stream, buffer, *parser, asio::redirect_error(use_awaitable, error));
    if (error && error != http::error::need_buffer) throw boost::system::system_error(error);
    take_events(lines, {part, sizeof part - parser->get().body().size}, now(), timeline);
    if (timeline.text.size() > static_cast<size_t>(o_.max_tokens) * kMostTokenBytes + kMostExtraBytes)
      throw std::runtime_error("the answer is far longer than -n");
  }
  if (!timeline.complete && !timeline.events.empty())
    throw std::runtime_error("the answer ended without finish_reason or [DONE]");
  timeline.ok = true;
}

asio::awaitable<void> Load::ask(Stream& stream, Timeline& timeline, std::string body) {
  stream.expires_after(patience());
  co_await stream.async_connect(endpoints_, use_awaitable);
  stream.socket().set_option(tcp::no_delay(true));
  http::request<http::string_body> request{http::verb::post, "/v1/completions", 11};
  request.set(http::field::host, o_.host.find(':') == std::string::npos ? o_.host : '[' + o_.host + ']');
  request.set(http::field::content_type, "application/json");
  request.set(http::field::connection, "close");
  if (!o_.key.empty()) request.set(http::field::authorization, "Bearer " + o_.key);
  request.body() = std::move(body);
  request.prepare_payload();
  co_await http::async_write(stream, request, use_awaitable);
  stream.expires_after(patience());
  co_await read_events(stream, timeline);
}

asio::awaitable<void> Load::one(int index) {
  Timeline& timeline = result_.requests[index];
  timeline.prompt = index % o_.prompts;
  Stream stream(io_);
  try {
    std::string body = body_of(timeline.prompt);  // before the time that counts
    timeline.start = now();
    co_await ask(stream, timeline, std::move(body));
  } catch (const boost::system::system_error& e) {
    timeline.error = words_of(e.code());
  } catch (const std::exception& e) {
    timeline.error = e.what();
  }
}

// Without the place in the library, which code.message() leaves out.
std::string Load::words_of(const boost::system::error_code& code) const {
  if (code == boost::beast::error::timeout) return fmt::format("not a byte for {:g} s", o_.timeout);
  if (code == http::error::end_of_stream) return "the server closed the connection without an answer";
  if (code == http::error::partial_message) return "the server closed the connection within its answer";
  return code.message();
}

bool Load::more() const {
  return o_.seconds > 0 ? now() < o_.seconds : std::ssize(result_.requests) < o_.requests;
}

asio::awaitable<void> Load::closed_loop() {
  asio::steady_timer timer(io_);
  while (more()) {
    result_.requests.emplace_back();
    const int index = static_cast<int>(result_.requests.size()) - 1;
    co_await one(index);
    if (o_.seconds == 0 || result_.requests[index].ok) continue;
    timer.expires_after(kPause);
    co_await timer.async_wait(use_awaitable);
  }
}

asio::awaitable<void> Load::open_loop() {
  std::mt19937_64 random(o_.seed);
  std::exponential_distribution<double> gap(o_.rate);
  asio::steady_timer timer(io_, Clock::now());
  for (int i = 0; i < o_.requests; ++i) {
    asio::co_spawn(io_, one(i), asio::detached);
    if (i + 1 == o_.requests) break;
    timer.expires_at(timer.expiry() +
                     std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(gap(random))));
    co_await timer.async_wait(use_awaitable);
  }
}

LoadResult Load::run() {
  begin_ = Clock::now();
  if (o_.rate > 0) {
    asio::co_spawn(io_, open_loop(), asio::detached);
  } else {
    for (int i = 0; i < o_.streams; ++i) asio::co_spawn(io_, closed_loop(), asio::detached);
  }
  io_.run();
  result_.seconds = now();
  return std::move(result_);
}

}  // namespace

Result<LoadResult> run_load(const LoadOptions& options) {
  asio::io_context io;
  tcp::resolver resolver(io);
  boost::system::error_code code;
  const Endpoints endpoints = resolver.resolve(options.host, options.port, code);
  if (!code) {
    tcp::socket socket(io);
    asio::connect(socket, endpoints, code);
  }
  if (code)
    return error(StatusCode::kIo, "cannot reach {}:{}: {}; is the server running?", options.host,
                 options.port, code.message());
  return Load(options, endpoints).run();
}

}  // namespace moesaic::app
