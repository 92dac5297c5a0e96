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
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "base/error.h"
#include "base/seconds.h"
#include "base/whole_json.h"

namespace moesaic::app {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::use_awaitable;
using tcp = asio::ip::tcp;
using Clock = std::chrono::steady_clock;
using Endpoints = tcp::resolver::results_type;

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
  asio::awaitable<void> ask(tcp::socket& socket, Timeline& timeline);
  bool more() const;
  asio::awaitable<void> read_events(tcp::socket& socket, Timeline& timeline) const;
  std::string body_of(int prompt) const;
  double now() const { return seconds_since(begin_); }

  const LoadOptions& o_;
  Endpoints endpoints_;
  asio::io_context io_;
  LoadResult result_ = {};
  Clock::time_point begin_;
};

std::string Load::body_of(int prompt) const {
  return nlohmann::json{{"model", o_.model}, {"prompt", o_.prompts[prompt]}, {"max_tokens", o_.max_tokens},
                        {"temperature", 0},  {"ignore_eos", true},           {"skip_special_tokens", false},
                        {"stream", true}}
      .dump();
}

std::string text_of(const std::string& data) {
  const auto json = parse_whole_json<nlohmann::json>(data);
  if (!json.is_object() || !json.contains("choices") || json["choices"].empty()) return "";
  return json["choices"][0].value("text", "");
}

// Takes whole lines from the front of `lines`; each event with text is a token that came now.
void take_events(std::string& lines, double now, Timeline& timeline) {
  constexpr std::string_view kData = "data: ";
  size_t begin = 0;
  for (size_t end; (end = lines.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string line = lines.substr(begin, end - begin);
    const std::string text = line.starts_with(kData) ? text_of(line.substr(kData.size())) : "";
    if (!text.empty()) timeline.tokens.push_back(now);
    timeline.text += text;
  }
  lines.erase(0, begin);
}

asio::awaitable<void> Load::read_events(tcp::socket& socket, Timeline& timeline) const {
  boost::beast::flat_buffer buffer;
  http::response_parser<http::buffer_body> parser;
  parser.body_limit(boost::none);
  co_await http::async_read_header(socket, buffer, parser, use_awaitable);
  char part[8192];
  std::string lines;
  while (!parser.is_done()) {
    parser.get().body().data = part;
    parser.get().body().size = sizeof part;
    boost::system::error_code error;
    co_await http::async_read_some(socket, buffer, parser, asio::redirect_error(use_awaitable, error));
    if (error && error != http::error::need_buffer) throw boost::system::system_error(error);
    lines.append(part, sizeof part - parser.get().body().size);
    take_events(lines, now(), timeline);
  }
  timeline.ok = parser.get().result() == http::status::ok;
  if (!timeline.ok) timeline.error = fmt::format("HTTP {}", parser.get().result_int());
}

asio::awaitable<void> Load::ask(tcp::socket& socket, Timeline& timeline) {
  co_await asio::async_connect(socket, endpoints_, use_awaitable);
  socket.set_option(tcp::no_delay(true));
  http::request<http::string_body> request{http::verb::post, "/v1/completions", 11};
  request.set(http::field::host, o_.host.find(':') == std::string::npos ? o_.host : '[' + o_.host + ']');
  request.set(http::field::content_type, "application/json");
  request.set(http::field::connection, "close");
  if (!o_.key.empty()) request.set(http::field::authorization, "Bearer " + o_.key);
  request.body() = body_of(timeline.prompt);
  request.prepare_payload();
  co_await http::async_write(socket, request, use_awaitable);
  co_await read_events(socket, timeline);
}

asio::awaitable<void> Load::one(int index) {
  Timeline& timeline = result_.requests[index];
  timeline.prompt = index % static_cast<int>(o_.prompts.size());
  timeline.start = now();
  tcp::socket socket(io_);
  try {
    co_await ask(socket, timeline);
  } catch (const std::exception& e) {
    timeline.error = e.what();
  }
}

bool Load::more() const {
  return o_.seconds > 0 ? now() < o_.seconds : std::ssize(result_.requests) < o_.requests;
}

asio::awaitable<void> Load::closed_loop() {
  while (more()) {
    result_.requests.emplace_back();
    co_await one(static_cast<int>(result_.requests.size()) - 1);
  }
}

asio::awaitable<void> Load::open_loop() {
  std::mt19937_64 random(o_.seed);
  std::exponential_distribution<double> gap(o_.rate);
  asio::steady_timer timer(io_, Clock::now());
  for (int i = 0; i < o_.requests; ++i) {
    asio::co_spawn(io_, one(i), asio::detached);
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
