// Responses that are kept for previous_response_id, item_reference and GET /v1/responses/{id}: in memory, and
// in a folder if there is one.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/siphash.h"
#include "openai/response_folder.h"

namespace moesaic::openai {

// An output item of a stored response.
struct FoundItem {
  std::shared_ptr<const StoredResponse> of;
  std::string_view json;  // lies in it
};

// Too many responses, or too many bytes, make the oldest of the largest share go.
// Thread-safe.
class ResponseStore {
 public:
  ResponseStore(size_t most, size_t most_bytes) : most_(most), most_bytes_(most_bytes) {}
  // The responses of the folder are found at once, as far as they fit, and changes here are made there too.
  // The store must be empty.
  Status keep_in(std::unique_ptr<ResponseFolder> folder);

  bool enabled() const { return most_ > 0; }
  // The most bytes of a response that is kept: a sixteenth of all. To read a longer one again would be much
  // work for a small request.
  size_t largest() const { return most_bytes_ / kLeastKept; }
  // Nothing where it is larger.
  void keep(const std::string& id, StoredResponse stored);
  std::shared_ptr<const StoredResponse> find(const std::string& id, const std::string& owner) const;
  std::optional<FoundItem> find_item(const std::string& item, const std::string& owner) const;
  // False: there is no such one.
  bool erase(const std::string& id, const std::string& owner);
  size_t size() const;
  size_t bytes() const;

 private:
  struct Entry {
    std::string id;
    std::shared_ptr<const StoredResponse> stored;
    size_t bytes() const { return id.size() + stored->bytes(); }
  };
  struct Share {
    std::list<Entry> entries;  // the oldest first
    size_t bytes = 0;
  };
  using Entries = std::list<Entry>;
  static constexpr size_t kLeastKept = 16;  // responses that there is room for, however large

  // By this alone an owner, who may be an API key, is known here and on the disk.
  std::string digest(const std::string& owner) const;
  // False where it is not kept.
  bool insert(const std::string& id, const std::shared_ptr<const StoredResponse>& stored);
  void forget(Entries::iterator entry);
  void forget_one();

  size_t most_, most_bytes_;
  std::unique_ptr<ResponseFolder> folder_;  // null: none
  HashKey key_ = random_hash_key();         // for digests: the folder's, so that they stay the same
  mutable std::mutex mutex_;
  std::unordered_map<std::string, Share> shares_;  // by holder, none empty
  std::unordered_map<std::string, Entries::iterator> by_id_;
  struct Place {
    Entries::iterator entry;
    size_t output = 0;  // index in StoredResponse::outputs
  };
  std::unordered_map<std::string, Place> by_item_;  // by the id of an output
  size_t bytes_ = 0;
};

}  // namespace moesaic::openai
