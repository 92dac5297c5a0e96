#include "server/kv_publisher.h"

#include <dlfcn.h>

#include <array>
#include <chrono>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/find_symbol.h"

namespace moesaic::server {
namespace {

using text::OrderedJson;

constexpr const char* kLibrary = "libzmq.so.5";
// These are from zmq.h; the values are part of its ABI.
constexpr int kZmqPub = 1, kZmqDontWait = 1, kZmqSendMore = 2, kZmqLinger = 17, kZmqSendHighWater = 23;
constexpr int kMostMessages = 100000;  // messages for a slow subscriber, as vLLM has it
constexpr int kLingerTime = 1000;      // milliseconds, at the end

// libzmq's functions, loaded when they are wanted, so that programs that publish nothing do not need it.
struct Zmq {
  void* (*ctx_new)() = nullptr;
  int (*ctx_term)(void*) = nullptr;
  void* (*socket)(void*, int) = nullptr;
  int (*close)(void*) = nullptr;
  int (*setsockopt)(void*, int, const void*, size_t) = nullptr;
  int (*bind)(void*, const char*) = nullptr;
  int (*send)(void*, const void*, size_t, int) = nullptr;
  int (*error)() = nullptr;
  const char* (*strerror)(int) = nullptr;
};

// The library stays loaded.
std::optional<Zmq> load_zmq() {
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {};
  Zmq z;
  const bool all =
      find_symbol(library, "zmq_ctx_new", z.ctx_new) && find_symbol(library, "zmq_ctx_term", z.ctx_term) &&
      find_symbol(library, "zmq_socket", z.socket) && find_symbol(library, "zmq_close", z.close) &&
      find_symbol(library, "zmq_setsockopt", z.setsockopt) && find_symbol(library, "zmq_bind", z.bind) &&
      find_symbol(library, "zmq_send", z.send) && find_symbol(library, "zmq_errno", z.error) &&
      find_symbol(library, "zmq_strerror", z.strerror);
  return all ? std::optional(z) : std::nullopt;
}

OrderedJson json_of(const KvEvent& event) {
  switch (event.kind) {
    case KvEvent::Kind::kStored:
      return {"BlockStored",
              OrderedJson::array({event.hash}),
              event.parent ? OrderedJson(*event.parent) : OrderedJson(),
              std::vector<int32_t>(event.tokens.begin(), event.tokens.end()),
              event.tokens.size(),
              nullptr,
              "GPU"};
    case KvEvent::Kind::kRemoved:
      return {"BlockRemoved", OrderedJson::array({event.hash}), "GPU"};
    default:
      return OrderedJson::array({"AllBlocksCleared"});
  }
}

// ZeroMQ takes a port above 65535 and listens on another.
bool port_is_possible(const std::string& endpoint) {
  if (!endpoint.starts_with("tcp://")) return true;
  const std::string port = endpoint.substr(endpoint.rfind(':') + 1);
  if (port == "*") return true;
  const bool digits =
      !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == std::string::npos;
  return digits && std::stoi(port) >= 1 && std::stoi(port) <= 65535;
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

struct KvPublisher::Socket {
  explicit Socket(const Zmq& z) : zmq(z), context(z.ctx_new()), socket(z.socket(context, kZmqPub)) {
    zmq.setsockopt(socket, kZmqSendHighWater, &kMostMessages, sizeof kMostMessages);
    zmq.setsockopt(socket, kZmqLinger, &kLingerTime, sizeof kLingerTime);
  }
  ~Socket() {
    zmq.close(socket);
    zmq.ctx_term(context);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  void send(std::string_view frame, bool more) {
    zmq.send(socket, frame.data(), frame.size(), kZmqDontWait | (more ? kZmqSendMore : 0));
  }

  Zmq zmq;
  void *context, *socket;
};

Result<std::shared_ptr<KvPublisher>> KvPublisher::bind(const std::string& endpoint, std::string topic) {
  const std::optional<Zmq> zmq = load_zmq();
  if (!zmq)
    return error(StatusCode::kUnsupported,
                 "--kv-events needs ZeroMQ ({}): install libzmq5 (Debian, Ubuntu) or "
                 "zeromq (Fedora)",
                 kLibrary);
  if (!port_is_possible(endpoint))
    return invalid("--kv-events {}: a tcp address ends with a port from 1 to 65535, such as tcp://*:5557",
                   endpoint);
  auto socket = std::make_unique<Socket>(*zmq);
  if (zmq->bind(socket->socket, endpoint.c_str()) != 0)
    return invalid("--kv-events {}: {}; it is an address to listen on, such as tcp://*:5557", endpoint,
                   zmq->strerror(zmq->error()));
  return std::shared_ptr<KvPublisher>(new KvPublisher(std::move(socket), std::move(topic)));
}

KvPublisher::KvPublisher(std::unique_ptr<Socket> socket, std::string topic)
    : socket_(std::move(socket)), topic_(std::move(topic)), thread_([this] { run(); }) {}

KvPublisher::~KvPublisher() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void KvPublisher::push(const KvEvent& event) {
  OrderedJson json = json_of(event);
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(json));
  changed_.notify_one();
}

void KvPublisher::run() {
  std::unique_lock lock(mutex_);
  for (bool going = true; going;) {
    changed_.wait(lock, [&] { return stopping_ || !events_.empty(); });
    going = !stopping_;
    OrderedJson events = std::exchange(events_, OrderedJson::array());
    lock.unlock();
    if (!events.empty()) send(std::move(events));
    lock.lock();
  }
}

void KvPublisher::send(OrderedJson events) {
  std::array<char, sizeof sequence_> number{};
  for (size_t i = 0; i < number.size(); ++i)
    number[i] = static_cast<char>(sequence_ >> (8 * (number.size() - 1 - i)));
  ++sequence_;
  const std::vector<uint8_t> payload =
      OrderedJson::to_msgpack(OrderedJson::array({seconds_since_1970(), std::move(events)}));
  socket_->send(topic_, true);
  socket_->send({number.data(), number.size()}, true);
  socket_->send({reinterpret_cast<const char*>(payload.data()), payload.size()}, false);
}

}  // namespace moesaic::server
