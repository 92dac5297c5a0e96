// Decides which requests may wait for the engine, which takes a number of generations for all clients.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

namespace moesaic::server {

// Room for so many generations, at work or waiting. Where it is full, clients with more in it make room for
// those with less: their newest requests that still wait have to go. A client alone has all of it. Not
// thread-safe.
class Admission {
 public:
  explicit Admission(int most) : most_(most) {}
  void enlarge(int by) { most_ += by; }

  struct Decision {
    bool admitted = false;
    std::vector<uint64_t> dropped = {};  // requests that have to go; they count no more
  };
  // A new request of `generations`; ids ascend.
  Decision admit(const std::string& client, uint64_t id, int generations);
  // The engine works at one of its generations: it is not dropped any more.
  void begun(const std::string& client, uint64_t id);
  // One of its generations has ended. Nothing where the request was dropped.
  void ended(const std::string& client, uint64_t id);
  int generations() const { return all_; }

 private:
  struct Request {
    int left = 0;
    bool begun = false;
  };
  struct Client {
    int generations = 0;
    std::map<uint64_t, Request> requests;
  };
  using Clients = std::unordered_map<std::string, Client>;
  struct Victim {
    const std::string* client = nullptr;
    uint64_t id = 0;
    int generations = 0;
  };

  Victim victim(const std::unordered_map<std::string, Client>& clients, int more_than) const;
  static void remove(Clients& clients, const std::string& client, uint64_t id);

  int most_, all_ = 0;
  Clients clients_;
};

}  // namespace moesaic::server
