// A connection's way of reading requests and writing answers: HTTP/1.1 by Boost.Beast, every operation with a
// limit of time.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/message.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/app.h"
#include "server/http.h"
#include "server/request_parser.h"

namespace moesaic::server {

using tcp = asio::ip::tcp;

// A socket of which every operation ends within a time. Kept alive by what it has started; used on its strand
// only.
class TimedSocket : public std::enable_shared_from_this<TimedSocket> {
 public:
  explicit TimedSocket(tcp::socket socket) : socket_(std::move(socket)), timer_(socket_.get_executor()) {}

  tcp::socket& socket() { return socket_; }
  // Operations in flight when the time is over fail with operation_aborted, and timed_out() is true. One may
  // have ended at that moment: whoever begins the next one asks timed_out() first.
  void expires_after(std::chrono::steady_clock::duration time);
  void expires_never();
  bool timed_out() const { return timed_out_; }
  // To be called from any thread: the time that was set last is over, if it still counts.
  std::function<void()> over_now();
  // Calls `gone` once if the client closes or resets the connection before forget().
  void watch(std::function<void()> gone);
  void forget();
  // Ends what is in flight; nothing is called any more.
  void stop();

 private:
  void look();
  void end_time(uint64_t serial);

  tcp::socket socket_;
  asio::steady_timer timer_, next_look_{socket_.get_executor()};
  uint64_t serial_ = 0;  // the current limit's: a timer that fires late must not hit the next operation
  bool timed_out_ = false;
  std::function<void()> gone_;
};

// One connection, on which requests are read and answered one after the other.
class Connection : public HttpExchange {
 public:
  Connection(tcp::socket socket, App& app);
  ~Connection() override { timed_->stop(); }

  // The next request's head. False: the connection is to be closed; an answer has been sent where one was
  // due.
  asio::awaitable<bool> read_head();
  asio::awaitable<bool> read_body();
  // Runs what route() finds for it.
  asio::awaitable<void> answer();
  bool keep_alive() const { return keep_alive_; }
  // After an exception: what has been sent may be half an answer, and nothing can follow it.
  void fail() {
    keep_alive_ = false;
    timed_->forget();
    abandon();
  }
  // Lets the client read what was sent before the connection is reset.
  asio::awaitable<void> close();

  asio::awaitable<void> send(HttpAnswer answer) override;
  asio::awaitable<bool> begin_events(std::string_view content_type) override;
  asio::awaitable<bool> send_events(std::string events) override;
  asio::awaitable<void> end_events() override;

 private:
  using Response = http::response<http::empty_body>;

  asio::awaitable<bool> await_request();
  bool has_begun();
  asio::awaitable<bool> read_more(size_t bytes);
  asio::awaitable<bool> receive_head();
  asio::awaitable<bool> receive_body();
  asio::awaitable<void> refuse(const openai::Refusal& refusal);
  asio::awaitable<bool> not_received();
  asio::awaitable<bool> send_continue();
  asio::awaitable<bool> write(std::string_view bytes, std::string_view more = {});
  std::string_view received() const {
    return {static_cast<const char*>(buffer_.data().data()), buffer_.size()};
  }
  void begin_request();
  void take_head();
  void take_refused_head();
  bool is_preflight() const;
  HttpAnswer preflight() const;
  void set_common(Response& response) const;

  App& app_;
  std::shared_ptr<TimedSocket> timed_;
  boost::beast::flat_buffer buffer_;
  std::optional<RequestParser> parser_;
  bool first_ = true;  // no request has been received yet
  unsigned version_ = 11;
  bool keep_alive_ = false, chunked_ = false, head_only_ = false;
  bool answered_ = false;  // this request, to its end
};

// Reads and answers requests until the connection ends. Throws nothing: what goes wrong is logged, and closes
// this connection only. place: of all connections, kept until then.
asio::awaitable<void> serve_connection(tcp::socket socket, App& app, Share place = {});

}  // namespace moesaic::server
