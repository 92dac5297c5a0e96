// Something that there is a limited amount of, shared by clients.
#pragma once

#include <cstddef>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

namespace moesaic::server {

// However much a client takes, others find some of it free: a client has at most so many times what is free.
// With 3, one client alone gets three quarters of all, two get three sevenths each, n of them 3/(3n + 1).
// Thread-safe.
class Shares {
 public:
  explicit Shares(size_t limit) : limit_(limit) {}

  // False: the client has its share, and nothing was taken. One that has nothing always gets one of what is
  // free.
  bool take(const std::string& client, size_t amount, size_t times = 3);
  void give_back(const std::string& client, size_t amount);
  size_t in_use() const;
  size_t limit() const { return limit_; }

 private:
  size_t limit_;
  mutable std::mutex mutex_;
  size_t in_use_ = 0;
  std::unordered_map<std::string, size_t> held_;  // by client, above 0
};

// A part of what clients share, given back when it goes; or nothing.
class Share {
 public:
  Share() = default;
  // Nothing where the client has its share.
  Share(Shares& shares, std::string client, size_t times)
      : shares_(shares.take(client, 1, times) ? &shares : nullptr), client_(std::move(client)) {}
  Share(Share&& other) noexcept
      : shares_(std::exchange(other.shares_, nullptr)), client_(std::move(other.client_)) {}
  Share& operator=(Share&&) = delete;
  ~Share() {
    if (shares_ != nullptr) shares_->give_back(client_, 1);
  }
  bool taken() const { return shares_ != nullptr; }

 private:
  Shares* shares_ = nullptr;
  std::string client_;
};

}  // namespace moesaic::server
