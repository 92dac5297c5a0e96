// Stored responses that are found again after a restart: a file for each in a private folder. One thread
// writes and removes them, so that no request waits for the disk.
//
// A file: SipHash, with the folder's key, of its name and its text; then the text, a JSON object of the
// members of StoredResponse. Its outputs, [id, begin, size] each, may be absent.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/private_folder.h"

namespace moesaic::openai {

// An output item, by the id that its client knows, and its place in StoredResponse::items.
struct StoredItem {
  std::string id;
  size_t begin = 0, size = 0;  // bytes
};

struct StoredResponse {
  std::string owner;     // who made it: nobody else finds it
  std::string holder;    // in whose share it is
  std::string response;  // JSON
  std::string items;     // JSON array: the input that led to it, and its output
  std::vector<StoredItem> outputs = {};
  size_t bytes() const;
};

class ResponseFolder {
 public:
  // Makes the folder if the one above it is there. An error if it is not this user's alone, or another
  // process uses it.
  static Result<std::unique_ptr<ResponseFolder>> open(const std::string& folder);
  ~ResponseFolder();  // writes what waits first

  const HashKey& key() const { return folder_.key(); }
  // Calls found for each response, the oldest first. Files of more than most_bytes, damaged and foreign ones
  // are named in the log and left out.
  using Found = std::function<void(const std::string& id, StoredResponse stored)>;
  Status read_all(size_t most_bytes, const Found& found) const;
  // The response is not kept on the disk if too much waits for it or writing fails; the log says so
  // once.
  void write(const std::string& id, std::shared_ptr<const StoredResponse> stored);
  void remove(const std::string& id);

 private:
  struct Change {
    std::string id;
    std::shared_ptr<const StoredResponse> stored;  // null: it is removed
  };

  explicit ResponseFolder(PrivateFolder folder);
  void work();
  void apply(const Change& change);
  void lost(const char* why);

  PrivateFolder folder_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Change> changes_;
  size_t waiting_bytes_ = 0;
  bool ends_ = false, lost_one_ = false;
  std::thread thread_;
};

}  // namespace moesaic::openai
