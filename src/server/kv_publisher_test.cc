// KV events as a subscriber of ZeroMQ reads them, written from the format alone.
#include "server/kv_publisher.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <optional>
#include <vector>

namespace moesaic::server {
namespace {

using text::Json;

// libzmq as a subscriber needs it; zmq.h's values are part of its ABI.
class Subscriber {
 public:
  explicit Subscriber(const std::string& endpoint)
      : context_(function<void*()>("zmq_ctx_new")()),
        socket_(function<void*(void*, int)>("zmq_socket")(context_, kSub)) {
    const int milliseconds = 50;
    set(kReceiveTimeout, &milliseconds, sizeof milliseconds);
    set(kSubscribe, "", 0);
    EXPECT_EQ(function<int(void*, const char*)>("zmq_connect")(socket_, endpoint.c_str()), 0);
  }
  ~Subscriber() {
    function<int(void*)>("zmq_close")(socket_);
    function<int(void*)>("zmq_ctx_term")(context_);
  }
  Subscriber(const Subscriber&) = delete;
  Subscriber& operator=(const Subscriber&) = delete;

  static bool possible() { return library() != nullptr; }

  // The frames of the next message; none: nothing came in 50 ms.
  std::vector<std::string> receive() {
    std::vector<std::string> frames;
    for (int more = 1; more != 0;) {
      std::array<char, 1 << 16> frame;
      const int size =
          function<int(void*, void*, size_t, int)>("zmq_recv")(socket_, frame.data(), frame.size(), 0);
      if (size < 0) return {};
      frames.emplace_back(frame.data(), size);
      size_t length = sizeof more;
      function<int(void*, int, void*, size_t*)>("zmq_getsockopt")(socket_, kReceiveMore, &more, &length);
    }
    return frames;
  }

 private:
  static constexpr int kSub = 2, kSubscribe = 6, kReceiveMore = 13, kReceiveTimeout = 27;
  static void* library() {
    static void* const library = dlopen("libzmq.so.5", RTLD_NOW | RTLD_LOCAL);
    return library;
  }
  template <typename Function>
  static Function* function(const char* name) {
    return reinterpret_cast<Function*>(dlsym(library(), name));
  }
  void set(int option, const void* value, size_t bytes) {
    EXPECT_EQ(function<int(void*, int, const void*, size_t)>("zmq_setsockopt")(socket_, option, value, bytes),
              0);
  }

  void *context_, *socket_;
};

struct Message {
  uint64_t number = 0;
  double time = 0;
  Json events;
};

std::optional<Message> parse(const std::vector<std::string>& frames, const std::string& topic) {
  if (frames.empty()) return {};
  EXPECT_EQ(frames.size(), 3u);
  EXPECT_EQ(frames[0], topic);
  EXPECT_EQ(frames[1].size(), 8u);
  uint64_t number = 0;
  for (const char c : frames[1]) number = number << 8 | static_cast<uint8_t>(c);
  const Json body = Json::from_msgpack(frames[2]);
  EXPECT_EQ(body.size(), 2u);
  return Message{.number = number, .time = body[0], .events = body[1]};
}

class KvPublisherTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!Subscriber::possible()) GTEST_SKIP() << "no libzmq.so.5 on this machine";
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::shared_ptr<KvPublisher> bind(const std::string& topic = "kv") {
    auto publisher = KvPublisher::bind(endpoint_, topic);
    EXPECT_TRUE(publisher.ok()) << publisher.status().message();
    return publisher.value();
  }
  // Subscriptions arrive some time after the connection: events until one comes back. Its number.
  uint64_t join(KvPublisher& publisher, Subscriber& subscriber, const std::string& topic = "kv") {
    for (int i = 0; i < 200; ++i) {
      publisher.push({.kind = KvEvent::Kind::kCleared});
      if (const auto message = parse(subscriber.receive(), topic)) {
        uint64_t last = message->number;
        while (const auto next = parse(subscriber.receive(), topic)) last = next->number;
        return last;
      }
    }
    ADD_FAILURE() << "no message in 10 s";
    return 0;
  }
  // Events until `count` have come; messages are numbered from `number` on without a gap.
  std::vector<Json> collect(Subscriber& subscriber, size_t count, uint64_t number) {
    std::vector<Json> events;
    for (int tries = 0; events.size() < count && tries < 200; ++tries) {
      const auto message = parse(subscriber.receive(), "kv");
      if (!message) continue;
      EXPECT_EQ(message->number, number++);
      EXPECT_GT(message->time, 1.6e9);
      events.insert(events.end(), message->events.begin(), message->events.end());
    }
    return events;
  }

  const std::string path_ =
      (std::filesystem::temp_directory_path() / ("kv_publisher_test." + std::to_string(getpid()))).string();
  const std::string endpoint_ = "ipc://" + path_;
};

TEST_F(KvPublisherTest, EventsAreInVllmsFormat) {
  const auto publisher = bind();
  Subscriber subscriber(endpoint_);
  const uint64_t number = join(*publisher, subscriber) + 1;
  const std::vector<int32_t> tokens = {1, 200, 199999};
  constexpr uint64_t kHash = 0xFEDCBA9876543210u;
  publisher->push({.kind = KvEvent::Kind::kStored, .hash = kHash, .tokens = tokens});
  publisher->push({.kind = KvEvent::Kind::kStored, .hash = 7, .parent = kHash, .tokens = tokens});
  publisher->push({.kind = KvEvent::Kind::kRemoved, .hash = kHash});
  publisher->push({.kind = KvEvent::Kind::kCleared});
  const std::vector<Json> events = collect(subscriber, 4, number);
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0],
            Json::array({"BlockStored", Json::array({kHash}), nullptr, tokens, 3, nullptr, "GPU"}));
  EXPECT_EQ(events[1], Json::array({"BlockStored", Json::array({7}), kHash, tokens, 3, nullptr, "GPU"}));
  EXPECT_EQ(events[2], Json::array({"BlockRemoved", Json::array({kHash}), "GPU"}));
  EXPECT_EQ(events[3], Json::array({"AllBlocksCleared"}));
}

TEST_F(KvPublisherTest, OrderIsKeptAndAnEmptyTopicIsAFrame) {
  const auto publisher = bind("");
  Subscriber subscriber(endpoint_);
  join(*publisher, subscriber, "");
  constexpr uint64_t kEvents = 1000;
  for (uint64_t i = 0; i < kEvents; ++i) publisher->push({.kind = KvEvent::Kind::kRemoved, .hash = i});
  uint64_t next = 0;
  for (int waits = 0; next < kEvents && waits < 200;) {
    const auto message = parse(subscriber.receive(), "");
    if (!message) {
      ++waits;
      continue;
    }
    for (const Json& event : message->events) EXPECT_EQ(event[1][0], next++);
  }
  EXPECT_EQ(next, kEvents);
}

// A subscriber that comes late learns from the number that it missed messages.
TEST_F(KvPublisherTest, NumbersGoOnForWhoComesLate) {
  const auto publisher = bind();
  Subscriber first(endpoint_);
  const uint64_t before = join(*publisher, first);
  Subscriber second(endpoint_);
  EXPECT_GT(join(*publisher, second), before);
}

TEST_F(KvPublisherTest, WhatIsLeftIsSentAtTheEnd) {
  auto publisher = bind();
  Subscriber subscriber(endpoint_);
  const uint64_t number = join(*publisher, subscriber) + 1;
  publisher->push({.kind = KvEvent::Kind::kRemoved, .hash = 3});
  publisher.reset();
  EXPECT_EQ(collect(subscriber, 1, number).size(), 1u);
}

TEST_F(KvPublisherTest, AddressesThatCannotBeBoundAreRefused) {
  for (const char* endpoint : {"", "5557", "tcp://", "tcp://*:99999999", "tcp://*:65536", "tcp://*:0",
                               "tcp://*:-1", "tcp://[::1]", "http://*:1", "ipc:///no/such/folder/x"}) {
    const auto publisher = KvPublisher::bind(endpoint, "kv");
    ASSERT_FALSE(publisher.ok()) << endpoint;
    EXPECT_NE(publisher.status().message().find(std::string("--kv-events ") + endpoint), std::string::npos);
    EXPECT_EQ(publisher.status().message().find('\n'), std::string::npos);
  }
  constexpr const char* kAny = "tcp://127.0.0.1:*";
  EXPECT_TRUE(KvPublisher::bind(kAny, "kv").ok());
}

TEST_F(KvPublisherTest, AnAddressInUseIsRefused) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string endpoint = "tcp://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  const auto publisher = KvPublisher::bind(endpoint, "kv");
  ASSERT_FALSE(publisher.ok());
  EXPECT_NE(publisher.status().message().find("--kv-events " + endpoint + ": Address already in use"),
            std::string::npos)
      << publisher.status().message();
  close(listener);
  EXPECT_TRUE(KvPublisher::bind(endpoint, "kv").ok());
}

}  // namespace
}  // namespace moesaic::server
