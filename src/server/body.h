// A request's body in memory, and the bytes that all bodies and unread answers may take, shared by clients.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>
#include <string_view>

#include "openai/api_error.h"
#include "server/shares.h"

namespace moesaic::server {

// The bytes that the bodies and the unread answers of all connections share. Thread-safe.
class BodyBudget {
 public:
  // in_use: where the bytes are counted.
  BodyBudget(size_t limit, std::atomic<size_t>& in_use) : shares_(limit), in_use_(in_use) {}

  // For a client's body that has `held` bytes so far. A client's bodies may have three times of what is free,
  // small ones seven times, so that bodies that never end shut nobody out.
  bool take(const std::string& client, size_t bytes, size_t held);
  void give_back(const std::string& client, size_t bytes);
  size_t limit() const { return shares_.limit(); }

 private:
  Shares shares_;
  std::atomic<size_t>& in_use_;
};

// Bytes of the budget that a client holds; given back when this goes.
class HeldBytes {
 public:
  HeldBytes(BodyBudget& budget, std::string client) : budget_(budget), client_(std::move(client)) {}
  HeldBytes(const HeldBytes&) = delete;
  HeldBytes& operator=(const HeldBytes&) = delete;
  ~HeldBytes() { hold(0); }
  // Holds so many in place of those so far. False, and nothing has changed: the client has its share.
  bool hold(size_t bytes);
  // The same for an answer's bytes that the client has not read: few count for nothing, as the other buffers
  // of a connection.
  bool hold_unread(size_t bytes);

 private:
  BodyBudget& budget_;
  std::string client_;
  size_t bytes_ = 0;
};

// The answer where the budget has no room.
openai::ApiError bodies_full();

// Grows as bytes come, and takes what it holds from the budget. A large body has pages of its own, which grow
// without a copy and go back to the system with it.
class Body {
 public:
  explicit Body(BodyBudget& budget) : budget_(&budget) {}
  // Names the client whose body it is. Call this before it has bytes.
  void set_client(std::string client) { client_ = std::move(client); }
  Body(Body&& other) noexcept;
  Body(const Body&) = delete;
  Body& operator=(const Body&) = delete;
  ~Body() { clear(); }

  // False: the budget or the memory is used up, and nothing has been added.
  bool append(std::string_view bytes);
  void clear();
  size_t size() const { return pages_ != nullptr ? size_ : small_.size(); }
  std::string_view view() const { return pages_ != nullptr ? std::string_view(pages_, size_) : small_; }

 private:
  bool reserve(size_t bytes);

  BodyBudget* budget_;
  std::string client_;
  std::string small_;      // until it has kSmall bytes
  char* pages_ = nullptr;  // from then on
  size_t size_ = 0, capacity_ = 0;
};

}  // namespace moesaic::server
