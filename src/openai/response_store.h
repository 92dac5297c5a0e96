// Responses that are kept for previous_response_id and GET /v1/responses/{id}, in memory.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

namespace moesaic::openai {

struct StoredResponse {
  std::string owner;     // who made it: nobody else finds it
  std::string holder;    // in whose share it is
  std::string response;  // JSON
  std::string items;     // JSON array: the input that led to it, and its output
};

// Where there are too many, or they have too many bytes, the oldest go first of those in the largest share.
// Thread-safe.
class ResponseStore {
 public:
  ResponseStore(size_t most, size_t most_bytes) : most_(most), most_bytes_(most_bytes) {}

  bool enabled() const { return most_ > 0; }
  // Nothing where it takes more than a sixteenth of all bytes: to read it again would be much work for a
  // small request.
  void keep(const std::string& id, StoredResponse stored);
  std::shared_ptr<const StoredResponse> find(const std::string& id, const std::string& owner) const;
  // False: there is no such one.
  bool erase(const std::string& id, const std::string& owner);
  size_t size() const;
  size_t bytes() const;

 private:
  struct Entry {
    std::string id;
    std::shared_ptr<const StoredResponse> stored;
    size_t bytes() const {
      return id.size() + stored->owner.size() + stored->holder.size() + stored->response.size() +
             stored->items.size();
    }
  };
  struct Share {
    std::list<Entry> entries;  // the oldest first
    size_t bytes = 0;
  };
  using Entries = std::list<Entry>;

  void forget(Entries::iterator entry);
  void forget_one();

  size_t most_, most_bytes_;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, Share> shares_;  // by holder, none empty
  std::unordered_map<std::string, Entries::iterator> by_id_;
  size_t bytes_ = 0;
};

}  // namespace moesaic::openai
