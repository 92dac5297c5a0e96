// For tests: the code of a connection on one end of a pair of sockets, in this thread, without a model. Time
// does not pass while it runs.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/strand.hpp>
#include <cstdlib>
#include <string>
#include <string_view>

#include "server/connection.h"

namespace moesaic::server {

// Its engine is never started: whatever needs the model is answered with 503.
inline std::unique_ptr<App> app_without_model(ServerOptions options) {
  const auto open = [](const EngineThread::Progress&) -> Result<Model> {
    return Status(StatusCode::kNotFound, "no model");
  };
  return std::make_unique<App>(std::move(options), open);
}

class SessionHarness {
 public:
  SessionHarness(asio::io_context& io, App& app) : io_(io), app_(app) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
    client_ = ends[0];
    answers_.reserve(32768);
    server_.assign(tcp::v4(), ends[1]);
  }
  SessionHarness(const SessionHarness&) = delete;
  SessionHarness& operator=(const SessionHarness&) = delete;
  ~SessionHarness() { ::close(client_); }

  void start() {
    const auto executor = server_.get_executor();
    asio::co_spawn(executor, serve_connection(std::move(server_), app_), asio::detached);
  }
  // Sends these bytes, as far as the server takes them, and does what follows from them.
  void feed(std::string_view bytes) {
    constexpr size_t kPart = 32768;
    for (; !bytes.empty(); bytes.remove_prefix(std::min(kPart, bytes.size()))) {
      [[maybe_unused]] const ssize_t sent =
          send(client_, bytes.data(), std::min(kPart, bytes.size()), MSG_NOSIGNAL);
      run();
    }
  }
  // The client says no more.
  void finish() {
    shutdown(client_, SHUT_WR);
    run();
  }
  const std::string& answers() const { return answers_; }
  // Does what there is to do.
  void run() {
    for (bool more = true; more;) {
      io_.restart();
      try {
        more = io_.poll() > 0;
      } catch (const std::exception& e) {
        app_.log.failure(e.what());
      }
      char part[16384];
      for (ssize_t got = 0; (got = recv(client_, part, sizeof part, 0)) > 0; more = true)
        answers_.append(part, static_cast<size_t>(got));
    }
  }

 private:
  asio::io_context& io_;
  App& app_;
  tcp::socket server_{asio::make_strand(io_)};
  int client_ = -1;
  std::string answers_;
};

}  // namespace moesaic::server
