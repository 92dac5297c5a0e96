// Responses that are kept for previous_response_id and GET /v1/responses/{id}, in memory.
#pragma once

#include <cstddef>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

namespace moesaic::openai {

struct StoredResponse {
  std::string owner;     // who made it: nobody else finds it
  std::string response;  // JSON
  std::string items;     // JSON array: the input that led to it, and its output
};

// The oldest go first, where there are too many or they have too many bytes. Thread-safe.
class ResponseStore {
 public:
  ResponseStore(size_t most, size_t most_bytes) : most_(most), most_bytes_(most_bytes) {}

  bool enabled() const { return most_ > 0; }
  // Nothing where it takes more than a sixteenth of all bytes: to read it again would be much work for a
  // small request.
  void keep(const std::string& id, StoredResponse stored);
  std::optional<StoredResponse> find(const std::string& id, const std::string& owner) const;
  // False: there is no such one.
  bool erase(const std::string& id, const std::string& owner);
  size_t size() const;
  size_t bytes() const;

 private:
  struct Entry {
    std::string id;
    StoredResponse stored;
    size_t bytes() const {
      return id.size() + stored.owner.size() + stored.response.size() + stored.items.size();
    }
  };
  using Entries = std::list<Entry>;

  void forget(Entries::iterator entry);

  size_t most_, most_bytes_;
  mutable std::mutex mutex_;
  Entries entries_;  // the oldest first
  std::unordered_map<std::string, Entries::iterator> by_id_;
  size_t bytes_ = 0;
};

}  // namespace moesaic::openai
