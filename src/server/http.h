// An HTTP request and its answer, as handlers see them.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "openai/answer.h"
#include "server/body.h"

namespace moesaic::server {

namespace asio = boost::asio;

// co_await an operation(..., into(error)): a failure is a value, not an exception.
inline auto into(boost::system::error_code& error) {
  return asio::redirect_error(asio::use_awaitable, error);
}

// A client must take so many bytes of an answer within --write-timeout, or all that are left: else it is cut
// off.
inline constexpr size_t kLeastRead = 64 << 10;

struct HttpRequest {
  std::string method, path;
  std::string query;          // behind the path's '?', as it was sent
  std::string id;             // given by the client or made here; in the answer and in the log
  std::string client;         // address
  std::string network;        // the client's (server/client.h)
  std::string authorization;  // the key that was shown
  std::string host;           // with the port, where there is one
  std::string origin;         // the page that asks
  bool same_origin = false;   // by the browser's word
  bool anthropic = false;     // has the field anthropic-version, which all of that API's clients send
};

struct HttpAnswer {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
};

// The log's members beside the request.
struct RequestRecord {
  int status = 0;  // 0: the client left before there was an answer
  std::string_view route = "none";
  std::chrono::steady_clock::time_point arrived, first;  // first: token
  openai::Usage usage;
  std::string ignored_fields;  // the request's, as the answer's header names them; empty: none
  std::string schema_notes;    // parts of its schemas that are not enforced, as the header says it
  bool cut_off = false;        // the client read too slowly for the rest of its answer
};

// One HTTP request and its answer. A handler answers with send(), or with begin_events(), send_events() and
// end_events(). Used on its executor, a strand, only.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  const HttpRequest& request() const { return request_; }
  // For a handler, once. Its memory counts for all bodies in flight until it goes.
  Body take_body() { return std::move(body_); }
  void drop_body() { body_.clear(); }
  RequestRecord& record() { return record_; }
  asio::any_io_executor executor() const { return executor_; }
  // Triggered when the client has gone, or by abandon(): cancels the generations.
  std::stop_token gone() const { return gone_.get_token(); }
  void abandon() { gone_.request_stop(); }
  bool begun() const { return record_.status != 0; }

  virtual asio::awaitable<void> send(HttpAnswer answer) = 0;
  // False: the client cannot be reached any more.
  virtual asio::awaitable<bool> begin_events(std::string_view content_type) = 0;
  virtual asio::awaitable<bool> send_events(std::string events) = 0;
  virtual asio::awaitable<void> end_events() = 0;

 protected:
  HttpExchange(asio::any_io_executor executor, BodyBudget& bodies)
      : body_(bodies), executor_(std::move(executor)) {}
  HttpRequest request_;
  Body body_;
  RequestRecord record_;
  std::stop_source gone_;

 private:
  asio::any_io_executor executor_;
};

}  // namespace moesaic::server
