// A folder of files that this user alone may read and that one process at a time has open. It keeps a key, by
// which its owner tells its own files from damaged and foreign ones, also after a restart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "base/siphash.h"
#include "moesaic/status.h"

namespace moesaic {

class PrivateFolder {
 public:
  // Makes folder and folder/name if what is above them is there. An error if folder/name is not this user's
  // alone, or another process has it open; it begins with `option`, by which the user named the folder.
  static Result<PrivateFolder> open(const std::string& folder, std::string_view name,
                                    std::string_view option);

  const std::string& path() const { return path_; }  // folder/name
  const HashKey& key() const { return key_; }

  struct File {
    std::string name;
    int64_t seconds = 0, nanoseconds = 0;  // when it was written or touched last
    uint64_t bytes = 0;
  };
  // The files that is_ours knows by name and that are this user's alone, the oldest first. One line of the
  // log counts the others, which are not `what`.
  Result<std::vector<File>> list(const std::function<bool(const std::string& name)>& is_ours,
                                 std::string_view what) const;

  // Replaces the file in one step by two parts. Gives 0, or the number of the error.
  int write(const std::string& name, std::span<const std::byte> head, std::span<const std::byte> body) const;
  struct Fault {
    const char* text = nullptr;  // null: there is none
    // The process or the system lacks file descriptors or memory just now: the file may be as it was written.
    bool passes = false;
  };
  // Fills both parts from a file that has exactly their bytes.
  Fault read(const std::string& name, std::span<std::byte> head, std::span<std::byte> body) const;
  void touch(const std::string& name) const;  // it is the newest now
  void remove(const std::string& name) const;

 private:
  explicit PrivateFolder(std::string path, std::string_view option)
      : path_(std::move(path)), option_(option) {}
  Status open_locked();
  Status read_key();
  Status failed(const std::string& what) const;

  std::string path_, option_;
  Descriptor dir_, lock_;
  HashKey key_{};
};

}  // namespace moesaic
