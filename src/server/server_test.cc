// The server in this process, with models/tiny and clients on threads: what ThreadSanitizer watches. Requests
// as clients make them are in tests/client.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <semaphore>
#include <thread>

#include "base/temporary_folder.h"
#include "server/keys.h"
#include "server/metrics.h"
#include "server/server_fixture.h"

namespace moesaic::server {
namespace {

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

// One word of 5 MB, which takes seconds to tokenize.
std::string large_request() {
  std::string word(5 << 20, 'a');
  uint32_t random = 1;
  for (char& c : word) c = static_cast<char>('a' + (random = random * 1664525 + 1013904223) / (1U << 28));
  return request(R"({"prompt": ")" + word + "\"}", "/tokenize");
}

TEST_F(ServerTest, LargeRequestsDoNotDelaySmallOnes) {
  const std::string large = large_request();
  std::vector<tcp::socket> sockets;
  for (int i = 0; i < 3; ++i) sockets.push_back(send(large));
  until("moesaic:num_requests_preparing", 3);
  EXPECT_NE(exchange(request(ask(R"("max_tokens": 2)"))).find("200 OK"), std::string::npos);
  // Is compiled, and then refused: beside the engine.
  const std::string schema =
      R"("response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"enum": []}}})";
  EXPECT_NE(exchange(request(ask(schema))).find(" 400 "), std::string::npos);
  EXPECT_NE(exchange(request(R"({"prompt": "a"})", "/tokenize")).find("200 OK"), std::string::npos);
  EXPECT_FALSE(shows("moesaic:num_requests_preparing", 0));
  sockets.clear();  // their clients leave: none of the three is worked at any longer
  until("moesaic:num_requests_preparing", 0);
  EXPECT_TRUE(shows_sample(R"(http_requests_total{route="/tokenize",status="200"})", 1));  // the small one
}

// As clients see it: the time in which the body comes counts.
TEST_F(ServerTest, TheTimeToTheFirstTokenBeginsWithTheHead) {
  constexpr std::chrono::milliseconds kPause(300);
  const std::string whole =
      request(ask(R"("max_tokens": 2)"), "/v1/chat/completions", "Expect: 100-continue\r\n");
  tcp::socket socket = send(whole.substr(0, whole.size() - 1));
  std::string head;  // tells that the server has the request's
  asio::read_until(socket, asio::dynamic_buffer(head), "\r\n\r\n");
  EXPECT_EQ(head.find("HTTP/1.1 100 "), 0);
  std::this_thread::sleep_for(kPause);
  asio::write(socket, asio::buffer(whole.substr(whole.size() - 1)));
  EXPECT_EQ(rest_of(socket).find("HTTP/1.1 200 "), 0);
  const std::string text = get("/metrics"),
                    name = R"(vllm:time_to_first_token_seconds_sum{model_name="tiny"} )";
  const size_t at = text.find(name);
  ASSERT_NE(at, std::string::npos);
  EXPECT_GE(std::stod(text.substr(at + name.size())), std::chrono::duration<double>(kPause).count());
}

// Streams that go on until the context is full.
class EndlessTest : public ServerTest {
 protected:
  explicit EndlessTest(const ServerOptions& options) : ServerTest(16384, options) {}

  // A chat whose answer cannot end by itself.
  std::string endless(const std::string& more) const {
    const std::string body =
        R"({"prompt": "<|return|><|call|><|endoftext|><|end|><|start|>", "parse_special": true})";
    const std::string ids = const_cast<EndlessTest*>(this)->exchange(request(body, "/tokenize"));
    const size_t begin = ids.find("\"tokens\":[") + 10;
    std::string bias;
    for (const char c : ids.substr(begin, ids.find(']', begin) - begin))
      bias += c == ',' ? "\":-100,\"" : std::string(1, c);
    return R"("logit_bias": {")" + bias + "\":-100}, " + more;
  }
};

// No time for them once the server is to end.
class DrainTest : public EndlessTest {
 protected:
  DrainTest() : EndlessTest(options_with([](ServerOptions& o) { o.limits.drain_time = seconds(0); })) {}

  // So many requests have ended, none of them by itself.
  void expect_aborted(int count) {
    const std::string name = R"(request_success_total{model_name="tiny",finished_reason=)";
    EXPECT_TRUE(shows_sample(name + R"("abort"})", count));
    EXPECT_TRUE(shows_sample(name + R"("length"})", 0));
    EXPECT_TRUE(shows_sample(name + R"("stop"})", 0));
  }
};

// A second for each answer.
class TimedTest : public EndlessTest {
 protected:
  TimedTest() : EndlessTest(options_with([](ServerOptions& o) { o.limits.request_time = seconds(1); })) {}
};

TEST_F(TimedTest, AnAnswerThatTakesTooLongEndsWithAnError) {
  const std::string whole = exchange(request(ask(endless(R"("stream": false)"))));
  EXPECT_EQ(whole.find("HTTP/1.1 504 "), 0) << whole.substr(0, 400);
  EXPECT_NE(whole.find(R"("code":"timeout")"), std::string::npos) << whole.substr(0, 400);
  const std::string streamed = exchange(request(ask(endless(R"("stream": true)"))));
  EXPECT_EQ(streamed.find("HTTP/1.1 200 "), 0) << streamed.substr(0, 400);
  EXPECT_NE(streamed.find("the answer took too long"), std::string::npos);
  until("vllm:num_requests_running", 0);
}

// No comments in silence.
class SilentTest : public ServerTest {
 protected:
  SilentTest() : ServerTest(16384, options_with([](ServerOptions& o) { o.limits.heartbeat = seconds(0); })) {}
};

TEST_F(SilentTest, AnswersWithoutHeartbeats) {
  std::vector<std::thread> clients;
  for (const char* stream : {"false", "false", "false", "true"}) {
    clients.emplace_back([&, stream] {
      const std::string answer =
          exchange(request(ask(fmt::format(R"("max_tokens": 12, "stream": {})", stream))));
      EXPECT_EQ(answer.find("HTTP/1.1 200 "), 0) << answer.substr(0, 400);
      EXPECT_EQ(answer.find("\n: "), std::string::npos) << answer;
    });
  }
  for (std::thread& client : clients) client.join();
}

// Bytes behind a request hide the client's end from those who wait for something to read.
TEST_F(DrainTest, AClientThatLeavesBehindEarlyBytesIsForgotten) {
  {
    tcp::socket socket = send(request(ask(endless(R"("stream": false, "temperature": 2)"))) + "\r\n");
    until("vllm:num_requests_running", 1);
  }
  until("vllm:num_requests_running", 0);
  expect_aborted(1);
}

// The answers have no end of their own before the context of 16384 tokens.
TEST_F(DrainTest, ClientsThatLeaveAreForgotten) {
  for (int i = 0; i < 3; ++i) {
    tcp::socket socket = send(request(ask(endless(R"("stream": true, "temperature": 2)"))));
    char byte = 0;
    asio::read(socket, asio::buffer(&byte, 1));
  }
  until("vllm:num_requests_running", 0);
  expect_aborted(3);
}

TEST_F(DrainTest, WhatIsLeftEndsWithAnError) {
  tcp::socket chat = send(request(ask(endless(R"("stream": true)"))));
  tcp::socket completion = send(request(
      R"({"prompt": "a", "max_tokens": 16000, "ignore_eos": true, "stream": true})", "/v1/completions"));
  tcp::socket responses =
      send(request("{" + endless(R"("input": "What is 17 + 25?", "stream": true)") + "}", "/v1/responses"));
  tcp::socket whole = send(request(ask(endless(R"("temperature": 0)"))));
  until("vllm:num_requests_running", 4);
  tcp::socket tokens = send(large_request());
  until("moesaic:num_requests_preparing", 1);
  for (tcp::socket* stream : {&chat, &completion, &responses}) {
    char byte = 0;
    asio::read(*stream, asio::buffer(&byte, 1));  // has begun
  }
  server_->drain();
  for (tcp::socket* stream : {&chat, &completion}) {
    const std::string answer = rest_of(*stream);
    EXPECT_NE(answer.find(R"(data: {"error":{"message":"the server is going down")"), std::string::npos)
        << answer;
    EXPECT_TRUE(answer.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"))
        << answer.substr(answer.size() - std::min<size_t>(answer.size(), 300));
  }
  const std::string failed = rest_of(responses);
  EXPECT_NE(failed.find("event: response.failed"), std::string::npos) << failed;
  EXPECT_NE(failed.find("shutting_down"), std::string::npos) << failed;
  EXPECT_TRUE(failed.ends_with("0\r\n\r\n"));
  for (tcp::socket* one : {&whole, &tokens}) {
    const std::string answer = rest_of(*one);
    EXPECT_EQ(answer.find("HTTP/1.1 503 "), 0) << answer.substr(0, 400);
    EXPECT_NE(answer.find("shutting_down"), std::string::npos);
    EXPECT_NE(answer.find("Retry-After: "), std::string::npos);
  }
}

// Whoever has most makes room with requests that wait, not with what is at work.
TEST_F(DrainTest, ARequestAtWorkKeepsItsPlace) {
  tcp::socket all =
      send(request(R"({"prompt": "a", "n": 12, "max_tokens": 16000, "ignore_eos": true, "stream": true})",
                   "/v1/completions"));
  until("vllm:num_requests_running", kBatch);
  tcp::socket other = connect("127.0.0.2");
  asio::write(other, asio::buffer(request(ask(R"("max_tokens": 1)"))));
  const std::string answer = rest_of(other);
  EXPECT_EQ(answer.find("HTTP/1.1 429 "), 0) << answer;
}

TEST_F(DrainTest, RefusesWhatDoesNotFitIntoTheQueue) {
  EXPECT_TRUE(shows("moesaic:refused_busy_total", 0));
  tcp::socket one = send(request(ask(endless(R"("stream": true)"))));
  until("vllm:num_requests_running", 1);
  const std::string answer = exchange(request(ask(R"("n": 16)")));
  EXPECT_NE(answer.find(" 429 "), std::string::npos) << answer;
  EXPECT_NE(answer.find("Retry-After: "), std::string::npos) << answer;
  EXPECT_TRUE(shows("moesaic:refused_busy_total", 1));
}

TEST(ServerStart, AModelThatDoesNotLoadEndsTheServer) {
  const auto open = [](const Server::Progress&) -> Result<Model> {
    return Status(StatusCode::kNotFound, "no such model");
  };
  const auto server = Server::create({.port = 0, .model_name = "x", .version = "test"}, open).value();
  EXPECT_EQ(server->run(false).message(), "no such model");
}

std::string get_from(uint16_t port, const std::string& path) {
  asio::io_context io;
  tcp::socket socket(io);
  socket.connect({asio::ip::make_address("127.0.0.1"), port});
  asio::write(socket,
              asio::buffer("GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
  std::string answer;
  boost::system::error_code end;
  asio::read(socket, asio::dynamic_buffer(answer), end);
  return answer;
}

TEST(ServerStart, SaysHowMuchIsLoadedAndStopsBetweenTwoReports) {
  std::binary_semaphore begun(0);
  const auto open = [&](const Server::Progress& progress) -> Result<Model> {
    EXPECT_TRUE(progress(0, 200));
    EXPECT_TRUE(progress(84, 200));
    begun.release();
    while (progress(84, 200)) std::this_thread::yield();
    return Status(StatusCode::kCancelled, "loading was cancelled");
  };
  const auto server = Server::create({.port = 0, .model_name = "x", .version = "test"}, open).value();
  Status status;
  std::thread thread([&] { status = server->run(false); });
  begun.acquire();
  const std::string ready = get_from(server->port(), "/ready"), health = get_from(server->port(), "/health");
  EXPECT_TRUE(ready.starts_with("HTTP/1.1 503 ")) << ready;
  EXPECT_NE(ready.find("the model is being loaded (42%)"), std::string::npos) << ready;
  EXPECT_TRUE(health.starts_with("HTTP/1.1 200 ")) << health;
  EXPECT_NE(health.find(R"({"status":"ok","loading":0.42})"), std::string::npos) << health;
  server->drain();
  thread.join();
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(ServerStart, LogsEachTenthOfALoad) {
  const TemporaryFolder folder;
  const std::string log = folder.path() + "/loading.log";
  const auto open = [](const Server::Progress& progress) -> Result<Model> {
    for (int i = 0; i <= 200; ++i) EXPECT_TRUE(progress(i, 200));
    return Status(StatusCode::kNotFound, "no such model");
  };
  ServerOptions options{.port = 0, .model_name = "x", .version = "test", .log_file = log};
  const auto told = [&](const ServerOptions& o) {
    EXPECT_FALSE(Server::create(o, open).value()->run(false).ok());
    std::ifstream in(log);
    int lines = 0;
    for (std::string line; std::getline(in, line);)
      lines += line.find(R"("event":"loading")") != std::string::npos;
    return lines;
  };
  EXPECT_EQ(told(options), 0);  // it was too quick for any
  options.loading_pause = std::chrono::milliseconds(0);
  EXPECT_EQ(told(options), 10);
  options.log_loading = false;
  EXPECT_EQ(told(options), 10);
}

// The load stands for the reading of a large layer from a slow disk.
TEST(ServerStart, DoesNotWaitForALoadThatHearsNothing) {
  std::binary_semaphore begun(0), released(0);
  const auto open = [&](const Server::Progress&) -> Result<Model> {
    begun.release();
    released.acquire();
    return Status(StatusCode::kNotFound, "no such model");
  };
  auto server = Server::create({.port = 0, .model_name = "x", .version = "test"}, open).value();
  Status status;
  std::thread thread([&] { status = server->run(false); });
  begun.acquire();
  server->drain();
  thread.join();
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  released.release();
  server.reset();
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
