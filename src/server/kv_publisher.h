// Publishes what changes in the prefix cache over ZeroMQ, in vLLM's format, for routers that follow it
// (llm-d, Dynamo, smg): docs/user/fleet.md. A message is three frames: the topic, a sequence number (8 bytes,
// big endian, from 0), and MessagePack of [seconds since 1970, [event, ..]], where an event is
//   ["BlockStored", [hash], hash of the block before or nil, [token, ..], tokens of a block, nil, "GPU"]
//   ["BlockRemoved", [hash], "GPU"]
//   ["AllBlocksCleared"]
// Subscribers that are slow lose messages, which they see by the numbers.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "moesaic/kv_events.h"
#include "moesaic/status.h"
#include "text/limited_json.h"

namespace moesaic::server {

class KvPublisher {
 public:
  // Binds, such as to tcp://*:5557 or ipc:///run/kv. libzmq is loaded now; kUnsupported where there is none.
  static Result<std::shared_ptr<KvPublisher>> bind(const std::string& endpoint, std::string topic);
  ~KvPublisher();  // sends what is left
  KvPublisher(const KvPublisher&) = delete;
  KvPublisher& operator=(const KvPublisher&) = delete;

  // From any thread. Does not wait for the network: a thread of the publisher's own sends.
  void push(const KvEvent& event);

 private:
  struct Socket;
  KvPublisher(std::unique_ptr<Socket> socket, std::string topic);
  void run();
  void send(text::OrderedJson events);

  std::unique_ptr<Socket> socket_;
  std::string topic_;
  uint64_t sequence_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  text::OrderedJson events_ = text::OrderedJson::array();
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace moesaic::server
