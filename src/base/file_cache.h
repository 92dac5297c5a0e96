// Atomic replacement of files that several processes use, and a folder of blobs by key, for results that are
// expensive to make and cheap to check.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "moesaic/status.h"

namespace moesaic {

uint64_t fnv1a(std::string_view bytes, uint64_t hash = 0xCBF29CE484222325u);  // hash: of what stands before

// The folder of this user's caches, XDG_CACHE_HOME/moesaic or ~/.cache/moesaic; empty where neither is known.
std::string cache_folder();

// The path that a link leads to, whether or not there is a file; any other path as it is. A file that is
// replaced under a link's name is replaced there, and the link stays.
std::string end_of_links(const std::string& path);

// Whom a file, and the folder that is made for it, are for.
enum class Readers { kAll, kOwner };
// Replaces the file in one step, by renaming: readers see the old one or the new one. Refuses to replace
// anything but a regular file (a device, say).
Status replace_whole(const std::string& path, std::string_view bytes, Readers readers = Readers::kAll);
// The same, and makes the file's folder.
Status write_whole(const std::string& path, std::string_view bytes, Readers readers = Readers::kAll);
// A regular file of at most `most` bytes.
Result<std::string> read_whole(const std::string& path, size_t most);

// A file for each blob, with its key and a checksum. Any number of processes may share the folder. An empty
// folder name: nothing is found, and nothing kept.
class FileCache {
 public:
  // most_bytes: of all files together; the blobs that were used least recently go first.
  explicit FileCache(std::string folder, uint64_t most_bytes = 256u << 20)
      : folder_(std::move(folder)), most_bytes_(most_bytes) {}

  // Empty if there is none; a damaged one is removed. A blob that is found counts as used.
  std::optional<std::string> find(std::string_view key) const;
  Status put(std::string_view key, std::string_view blob) const;
  std::string path_of(std::string_view key) const;

 private:
  void evict(const std::string& newest) const;

  std::string folder_;
  uint64_t most_bytes_;
};

}  // namespace moesaic
