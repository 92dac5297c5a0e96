// A connection's way of reading requests and writing answers: HTTP/1.1 by Boost.Beast, every operation with a
// limit of time.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <memory>
#include <optional>
#include <string>

#include "server/app.h"
#include "server/http.h"

namespace moesaic::server {

namespace http = boost::beast::http;
using tcp = asio::ip::tcp;

// A socket of which every operation ends within a time. Kept alive by what it has started; used on its strand
// only.
class TimedSocket : public std::enable_shared_from_this<TimedSocket> {
 public:
  explicit TimedSocket(tcp::socket socket) : socket_(std::move(socket)), timer_(socket_.get_executor()) {}

  tcp::socket& socket() { return socket_; }
  // What is under way when the time is over fails with operation_aborted, and timed_out() is true.
  void expires_after(std::chrono::steady_clock::duration time);
  void expires_never();
  bool timed_out() const { return timed_out_; }
  // Calls `gone` once if the client closes or resets the connection before forget().
  void watch(std::function<void()> gone);
  void forget();

 private:
  void looked(const boost::system::error_code& error);

  tcp::socket socket_;
  asio::steady_timer timer_;
  uint64_t serial_ = 0;  // of the current limit: a timer that fires late must not hit the next operation
  bool timed_out_ = false;
  std::function<void()> gone_;
};

// One connection, on which requests are read and answered one after the other.
class Connection : public Exchange {
 public:
  Connection(tcp::socket socket, App& app);

  // The next request's head. False: the connection is to be closed; an answer has been sent where one was
  // due.
  asio::awaitable<bool> read_head();
  asio::awaitable<bool> read_body();
  // Runs what route() finds for it.
  asio::awaitable<void> answer();
  bool keep_alive() const { return keep_alive_; }
  // Lets the client read what was sent before the connection is reset.
  asio::awaitable<void> close();

  asio::awaitable<void> send(HttpAnswer answer) override;
  asio::awaitable<bool> begin_events() override;
  asio::awaitable<bool> send_events(std::string events) override;
  asio::awaitable<void> end_events() override;

 private:
  using Parser = http::request_parser<http::string_body>;

  asio::awaitable<bool> fill_buffer();
  asio::awaitable<bool> refuse(const boost::system::error_code& error);
  asio::awaitable<bool> send_continue();
  asio::awaitable<bool> write(asio::const_buffer bytes);
  void take_head();
  bool is_preflight() const;
  template <typename Fields>
  void set_common(Fields& fields) const;

  App& app_;
  std::shared_ptr<TimedSocket> timed_;
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  unsigned version_ = 11;
  bool keep_alive_ = false, chunked_ = false, head_only_ = false;
};

// Reads and answers requests until the connection ends.
asio::awaitable<void> serve_connection(tcp::socket socket, App& app);

}  // namespace moesaic::server
