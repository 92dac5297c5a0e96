// Places and bytes that one client cannot take from another, whatever it sends.
#include "server/shares.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <thread>

#include "server/client.h"
#include "server/keys.h"
#include "server/server_fixture.h"

namespace moesaic::server {
namespace {

TEST(Shares, SomethingIsAlwaysFree) {
  Shares shares(1600);
  size_t first = 0, second = 0;
  while (shares.take("a", 10)) first += 10;
  EXPECT_EQ(first, 1200u);
  while (shares.take("b", 10)) second += 10;
  EXPECT_EQ(second, 300u);
  EXPECT_FALSE(shares.take("b", 10));
  EXPECT_TRUE(shares.take("b", 10, 7));  // this kind may have more
  EXPECT_TRUE(shares.take("c", 10));
  EXPECT_FALSE(shares.take("c", 1000));
  shares.give_back("a", first);
  shares.give_back("b", second + 10);
  shares.give_back("c", 10);
  EXPECT_EQ(shares.in_use(), 0u);
  EXPECT_FALSE(shares.take("c", 1601));
}

TEST(Shares, AFewPiecesAreSharedToo) {
  for (size_t limit = 1; limit < 20; ++limit) {
    Shares shares(limit);
    size_t held = 0;
    while (shares.take("a", 1)) ++held;
    EXPECT_GE(held, limit * 3 / 4);
    EXPECT_EQ(shares.take("b", 1), limit >= 3) << limit;
  }
}

TEST(Client, IsANetworkOrAKey) {
  const auto network = [](const char* address) { return network_of(asio::ip::make_address(address)); };
  EXPECT_EQ(network("192.0.2.7"), "192.0.2.7");
  EXPECT_EQ(network("::ffff:192.0.2.7"), "192.0.2.7");
  EXPECT_EQ(network("2001:db8:1:2:3:4:5:6"), network("2001:db8:1:2:ffff::1"));
  EXPECT_NE(network("2001:db8:1:2::1"), network("2001:db8:1:3::1"));
  for (const char* local : {"::1", "fe80::1", "fd00::1"}) EXPECT_EQ(network(local), local);

  HttpRequest request;
  request.network = "192.0.2.7", request.authorization = "second";
  EXPECT_EQ(client_of(request, {}), "192.0.2.7");
  EXPECT_EQ(client_of(request, {.api_keys = {"second"}}), "192.0.2.7");  // everybody's key
  EXPECT_EQ(client_of(request, {.api_keys = {"first", "second", "second"}}), "key 1");
  request.network = "192.0.2.8";
  EXPECT_EQ(client_of(request, {.api_keys = {"first", "second"}}), "key 1");
}

class SharesTest : public ServerTest {
 protected:
  static constexpr size_t kBodies = 4 << 20;
  explicit SharesTest(size_t bodies = kBodies, seconds write_time = Limits().write_time)
      : ServerTest(16384, options_with([&](ServerOptions& o) {
                     o.api_keys = {"first", "second"};
                     o.limits.bodies_bytes = bodies;
                     o.limits.body_bytes = 1 << 20;
                     o.limits.connections = 40;
                     o.limits.write_time = write_time;
                     o.limits.drain_time = seconds(0);
                   })) {}
  static std::string key(const char* name) { return std::string("Authorization: Bearer ") + name + "\r\n"; }
  static std::string long_stream(const char* name) {
    return request(R"({"prompt": "a", "max_tokens": 16000, "ignore_eos": true, "stream": true})",
                   "/v1/completions", key(name));
  }
  // The sockets whose unread answers begin with `head`.
  static std::vector<tcp::socket*> beginning_with(std::vector<tcp::socket>& sockets, std::string_view head) {
    std::vector<tcp::socket*> found;
    for (tcp::socket& socket : sockets) {
      std::string begin(head.size(), ' ');
      if (socket.available() < begin.size()) continue;
      socket.receive(asio::buffer(begin), tcp::socket::message_peek);
      if (begin == head) found.push_back(&socket);
    }
    return found;
  }
  // Waits for an answer that begins with `head`, and reads it to its end.
  static std::string first_of(std::vector<tcp::socket>& sockets, std::string_view head) {
    while (beginning_with(sockets, head).empty()) {
    }
    return rest_of(*beginning_with(sockets, head).front());
  }
};

// Item by item: one key has every place and the whole queue, and the other is answered as if alone.
TEST_F(SharesTest, AKeysStreamsDoNotShutOutAnother) {
  const std::string small = request(ask(R"("max_tokens": 8)"), "/v1/chat/completions", key("second"));
  const std::string alone = exchange(small);
  EXPECT_NE(alone.find("200 OK"), std::string::npos) << alone;
  std::vector<tcp::socket> streams;
  for (int i = 0; i < kBatch + 8; ++i) streams.push_back(send(long_stream("first")));
  until("vllm:num_requests_running", kBatch);
  until("vllm:num_requests_waiting", 8);
  EXPECT_NE(exchange(long_stream("first")).find(" 429 "), std::string::npos);
  const auto content = [](const std::string& answer) {
    return answer.substr(answer.find("\"content\":")).substr(0, 30);
  };
  EXPECT_EQ(content(exchange(small)), content(alone));
  until("vllm:num_requests_running", kBatch);
  const std::string dropped = first_of(streams, "HTTP/1.1 429");  // it made room
  EXPECT_NE(dropped.find("Retry-After: "), std::string::npos) << dropped;
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  size_t begun = 0;
  while (begun < kBatch && std::chrono::steady_clock::now() < end)
    begun = beginning_with(streams, "HTTP/1.1 200").size();
  EXPECT_GE(begun, static_cast<size_t>(kBatch));
}

TEST_F(SharesTest, AKeysHalfSentBodiesDoNotShutOutAnother) {
  std::vector<tcp::socket> held;
  for (int i = 0; i < 8; ++i)
    held.push_back(send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\n" + key("first") +
                        "Content-Length: 1000000\r\n\r\n" + std::string(999999, ' ')));
  // All eight grow at once, so any of them may be the one that finds no room.
  EXPECT_NE(first_of(held, "HTTP/1.1 503").find("Retry-After: "), std::string::npos);
  const std::string body = R"({"prompt": "a"})" + std::string(500000, ' ');
  EXPECT_NE(exchange(request(body, "/tokenize", key("second"))).find("200 OK"), std::string::npos);
  EXPECT_NE(exchange(request(R"({"prompt": "a"})", "/tokenize", key("first"))).find("200 OK"),
            std::string::npos);  // a small one of the same client
}

// An answer may repeat more bytes than the body had: 1e9 is written as 1000000000.0.
TEST_F(SharesTest, WhatAnAnswerKeepsOfItsBodyCountsAsABody) {
  const auto answer_to = [&](int numbers) {
    std::string metadata;
    for (int i = 0; i < numbers; ++i) metadata += i == 0 ? "1e9" : ",1e9";
    const std::string body =
        R"({"input": "a", "max_output_tokens": 16, "metadata": {"a": [)" + metadata + "]}}";
    return exchange(request(body, "/v1/responses", key("first")));
  };
  const std::string refused = answer_to(250'000);
  EXPECT_EQ(refused.find("HTTP/1.1 503 "), 0) << refused.substr(0, 400);
  EXPECT_NE(refused.find("bodies_full"), std::string::npos) << refused.substr(0, 400);
  const std::string fits = answer_to(24'000);
  EXPECT_EQ(fits.find("HTTP/1.1 200 "), 0) << fits.substr(0, 400);
  EXPECT_NE(fits.find(R"("metadata":{"a":[1000000000.0,)"), std::string::npos);
  until("moesaic:request_body_bytes", 0);
}

class FewBytesTest : public SharesTest {
 protected:
  FewBytesTest() : SharesTest(kBodies / 8, std::chrono::minutes(10)) {}
};

// 2.5 MB of log-probabilities, of which the client reads 0.4 MB in a second once all is generated.
TEST_F(FewBytesTest, AStreamThatFallsBehindEndsWithAnError) {
  tcp::socket socket(io_, tcp::v4());
  socket.set_option(asio::socket_base::receive_buffer_size(65536));
  socket.connect({asio::ip::make_address("127.0.0.1"), server_->port()});
  const std::string body =
      R"({"prompt": "a", "n": 4, "max_tokens": 800, "ignore_eos": true, "stream": true, "logprobs": 20})";
  asio::write(socket, asio::buffer(request(body, "/v1/completions", key("first"))));
  until("vllm:generation_tokens_total", 3200);  // while nothing is read
  std::string answer;
  boost::system::error_code end;
  for (std::array<char, 8192> part; !end; std::this_thread::sleep_for(std::chrono::milliseconds(20)))
    answer.append(part.data(), socket.read_some(asio::buffer(part), end));
  EXPECT_EQ(answer.find("HTTP/1.1 200 "), 0) << answer.substr(0, 400);
  EXPECT_NE(answer.find("bodies_full"), std::string::npos) << answer.size();
  until("moesaic:request_body_bytes", 0);
}

// cached_tokens of the same prompt again.
TEST_F(SharesTest, AKeyFindsOnlyWhatItSentItself) {
  const auto cached = [&](const char* name, const std::string& salt) {
    const std::string body = R"({"prompt": ")" + std::string(400, 'x') + R"(", "max_tokens": 1)" + salt + "}";
    const std::string answer = exchange(request(body, "/v1/completions", key(name)));
    const size_t at = answer.find("\"cached_tokens\":");
    return at == std::string::npos ? answer
                                   : answer.substr(at + 16, answer.find_first_of(",}", at) - at - 16);
  };
  EXPECT_EQ(cached("first", ""), "0");
  EXPECT_NE(cached("first", ""), "0");
  EXPECT_EQ(cached("second", ""), "0");
  EXPECT_NE(cached("second", ""), "0");
  EXPECT_EQ(cached("first", R"(, "cache_salt": "s")"), "0");
  EXPECT_EQ(cached("second", R"(, "cache_salt": "s")"), "0");
  EXPECT_NE(cached("second", R"(, "cache_salt": "s")"), "0");
}

TEST_F(SharesTest, AnAddressesConnectionsDoNotShutOutAnother) {
  std::vector<tcp::socket> held;
  for (int i = 0; i < 39; ++i) held.push_back(connect());
  const auto health = [&](const char* from) {
    tcp::socket socket = connect(from);
    asio::write(
        socket,
        asio::buffer(std::string("GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")));
    return rest_of(socket);
  };
  EXPECT_EQ(health("127.0.0.1").find("HTTP/1.1 503 "), 0);
  EXPECT_EQ(health("127.0.0.2").find("HTTP/1.1 200 "), 0);
}

}  // namespace
}  // namespace moesaic::server
