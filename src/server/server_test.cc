// The server in this process, with models/tiny and clients on threads: what ThreadSanitizer watches. Requests
// as clients make them are in tests/client.
#include "server/server.h"

#include <gtest/gtest.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <thread>

#include "server/keys.h"
#include "server/metrics.h"

namespace moesaic::server {
namespace {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;

constexpr int kBatch = 4;

std::string request(const std::string& body) {
  return "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

std::string ask(const std::string& more) {
  return R"({"messages": [{"role": "user", "content": "What is 17 + 25?"}], "temperature": 0, )" + more + "}";
}

class ServerTest : public testing::Test {
 protected:
  ServerTest() {
    ServerOptions options{.port = 0, .model_name = "tiny", .version = "test", .log_requests = false};
    options.limits.waiting = 8;
    const auto open = [] {
      return Model::open(MOESAIC_SOURCE_DIR "/models/tiny",
                         {.device = "cpu", .threads = 1, .context = 512, .max_batch = kBatch});
    };
    server_ = Server::create(options, open, kBatch).value();
    thread_ = std::thread([this] { status_ = server_->run(false); });
    while (get("/ready").find("200 OK") == std::string::npos)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ~ServerTest() override {
    server_->drain();
    thread_.join();
    EXPECT_TRUE(status_.ok()) << status_.message();
  }

  tcp::socket connect() {
    tcp::socket socket(io_);
    socket.connect({asio::ip::make_address("127.0.0.1"), server_->port()});
    return socket;
  }
  // All that comes back.
  std::string exchange(const std::string& data) {
    tcp::socket socket = connect();
    asio::write(socket, asio::buffer(data));
    std::string answer;
    boost::system::error_code end;
    asio::read(socket, asio::dynamic_buffer(answer), end);
    return answer;
  }
  std::string get(const std::string& path) {
    return exchange("GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  }

  asio::io_context io_;
  std::unique_ptr<Server> server_;
  std::thread thread_;
  Status status_;
};

std::string content_of(const std::string& answer) {
  const size_t begin = answer.find("\"content\":");
  return begin == std::string::npos ? answer : answer.substr(begin, answer.find(",\"refusal\"") - begin);
}

TEST_F(ServerTest, ManyClientsGetTheAnswersOfOne) {
  const std::string alone = content_of(exchange(request(ask(R"("max_tokens": 12)"))));
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&, i] {
      if (i % 2 == 0) {
        EXPECT_EQ(content_of(exchange(request(ask(R"("max_tokens": 12)")))), alone);
      } else {
        const std::string streamed = exchange(request(ask(R"("max_tokens": 12, "stream": true)")));
        EXPECT_NE(streamed.find("[DONE]"), std::string::npos) << streamed;
      }
    });
  }
  for (std::thread& client : clients) client.join();
}

TEST_F(ServerTest, ClientsThatLeaveAreForgotten) {
  for (int i = 0; i < 3; ++i) {
    tcp::socket socket = connect();
    asio::write(socket, asio::buffer(request(ask(R"("stream": true, "temperature": 2)"))));
    char byte = 0;
    asio::read(socket, asio::buffer(&byte, 1));
  }
  const std::string idle = "vllm:num_requests_running{model_name=\"tiny\"} 0\n";
  for (int i = 0; i < 1000 && get("/metrics").find(idle) == std::string::npos; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_NE(get("/metrics").find(idle), std::string::npos);
}

TEST_F(ServerTest, RefusesWhatDoesNotFitIntoTheQueue) {
  const std::string answer = exchange(request(ask(R"("n": 16)")));
  EXPECT_NE(answer.find(" 429 "), std::string::npos) << answer;
  EXPECT_NE(answer.find("Retry-After: "), std::string::npos) << answer;
}

TEST(ServerStart, AModelThatDoesNotLoadEndsTheServer) {
  const auto open = []() -> Result<Model> { return Status(StatusCode::kNotFound, "no such model"); };
  const auto server = Server::create({.port = 0, .model_name = "x", .version = "test"}, open, 1).value();
  EXPECT_EQ(server->run(false).message(), "no such model");
}

TEST(Keys, Compares) {
  const std::vector<std::string> keys = {"first", "second"};
  EXPECT_TRUE(is_key("first", keys));
  EXPECT_TRUE(is_key("second", keys));
  for (const char* wrong : {"", "firs", "firsT", "firstt", "secon"})
    EXPECT_FALSE(is_key(wrong, keys)) << wrong;
  EXPECT_FALSE(is_key("x", {""}));
}

TEST(HistogramText, CumulatesBuckets) {
  Histogram histogram({1, 2});
  for (const double value : {0.5, 1.0, 1.5, 3.0}) histogram.observe(value);
  std::string text;
  histogram.write("h", "a=\"b\"", text);
  EXPECT_EQ(text,
            "h_bucket{a=\"b\",le=\"1\"} 2\nh_bucket{a=\"b\",le=\"2\"} 3\nh_bucket{a=\"b\",le=\"+Inf\"} 4\n"
            "h_sum{a=\"b\"} 6\nh_count{a=\"b\"} 4\n");
}

}  // namespace
}  // namespace moesaic::server
