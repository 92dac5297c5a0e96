// For tests: the server in this process, with models/tiny and clients on threads.
#pragma once

#include <gtest/gtest.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <thread>

#include "server/server.h"

namespace moesaic::server {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;

inline constexpr int kBatch = 4;

// headers: whole lines.
inline std::string request(const std::string& body, const std::string& path = "/v1/chat/completions",
                           const std::string& headers = {}) {
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

inline std::string ask(const std::string& more) {
  return R"({"messages": [{"role": "user", "content": "What is 17 + 25?"}], "temperature": 0, )" + more + "}";
}

class ServerTest : public testing::Test {
 protected:
  template <typename Set>
  static ServerOptions options_with(Set&& set) {
    ServerOptions options{.port = 0, .model_name = "tiny", .version = "test", .log_requests = false};
    options.limits.waiting = 8;
    set(options);
    return options;
  }
  explicit ServerTest(int context = 512, const ServerOptions& options = options_with([](auto&) {})) {
    const auto open = [context](const Server::Progress&) {
      return Model::open(MOESAIC_SOURCE_DIR "/models/tiny",
                         {.device = "cpu", .threads = 1, .context = context, .max_batch = kBatch});
    };
    server_ = Server::create(options, open).value();
    thread_ = std::thread([this] { status_ = server_->run(false); });
    server_->wait_until_loaded();
    EXPECT_NE(get("/ready").find("200 OK"), std::string::npos);
  }
  ~ServerTest() override {
    server_->drain();
    thread_.join();
    EXPECT_TRUE(status_.ok()) << status_.message();
  }

  // from: the client's address.
  tcp::socket connect(const char* from = "127.0.0.1") {
    tcp::socket socket(io_, {asio::ip::make_address(from), 0});
    socket.connect({asio::ip::make_address("127.0.0.1"), server_->port()});
    return socket;
  }
  // A request that is refused before all of it was sent fails here at times; its answer says why.
  tcp::socket send(const std::string& data) {
    tcp::socket socket = connect();
    boost::system::error_code refused;
    asio::write(socket, asio::buffer(data), refused);
    return socket;
  }
  // All that comes back.
  std::string exchange(const std::string& data) {
    tcp::socket socket = send(data);
    return rest_of(socket);
  }
  static std::string rest_of(tcp::socket& socket) {
    std::string answer;
    boost::system::error_code end;
    asio::read(socket, asio::dynamic_buffer(answer), end);
    return answer;
  }
  std::string get(const std::string& path) {
    return exchange("GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  }

  bool shows(const std::string& metric, int value) {
    return shows_sample(metric + "{model_name=\"tiny\"}", value);
  }
  // sample: a metric with all its labels.
  bool shows_sample(const std::string& sample, int value) {
    return get("/metrics").find(sample + " " + std::to_string(value) + "\n") != std::string::npos;
  }
  // Asks again until it is so; ctest limits the time.
  void until(const std::string& metric, int value) {
    while (!shows(metric, value)) {
    }
  }

  asio::io_context io_;
  std::unique_ptr<Server> server_;
  std::thread thread_;
  Status status_;
};

}  // namespace moesaic::server
