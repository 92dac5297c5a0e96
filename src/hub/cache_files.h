// A repository in the Hugging Face cache, in the layout of huggingface_hub, so that its programs find what
// is written here and write beside it:
//   CACHE/models--OWNER--NAME/blobs/SUM                        the files
//                             blobs/SUM.incomplete             the beginning of one
//                             snapshots/COMMIT/PATH            relative links to them
//                             refs/REVISION                    its commit, of which files may be missing
//   CACHE/.locks/models--OWNER--NAME/SUM.lock                  whoever writes a blob holds flock() on it
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/descriptor.h"
#include "hub/digest.h"
#include "hub/listing.h"

namespace moesaic::hub {

class RepositoryCache {
 public:
  RepositoryCache(std::string cache, const std::string& repository);

  // Makes the folders. It is an error if a file is in their place.
  Status make(const std::string& commit) const;
  std::string blob(const RemoteFile& file) const;
  std::string incomplete(const RemoteFile& file) const { return blob(file) + ".incomplete"; }
  std::string snapshot(const std::string& commit) const;
  // True if the blob, or the file itself in the snapshot, is there and has its full size.
  bool has(const RemoteFile& file, const std::string& commit) const;
  // True if the snapshot has the file in its full size.
  bool is_linked(const RemoteFile& file, const std::string& commit) const;
  // Bytes of it that are there already.
  int64_t bytes_there(const RemoteFile& file, const std::string& commit) const;
  // Null: another program has it.
  Result<std::optional<Descriptor>> try_lock(const RemoteFile& file) const;
  // Links the blob into the snapshot, unless the file is there.
  Status link(const RemoteFile& file, const std::string& commit) const;
  // The snapshot is complete and becomes the revision's current one, if it is not.
  Status set_current(const std::string& revision, const std::string& commit) const;
  // An error if the file system of the cache has not so many bytes left.
  Status check_room(int64_t bytes) const;

 private:
  std::string cache_, folder_, locks_;
};

// A blob that is written in order, from its beginning on. The file always holds its first bytes, so that the
// download can be resumed however the program ended. Move-only.
class PartialFile {
 public:
  // Goes on with what is there; that is read once, for the sum.
  static Result<PartialFile> open(const std::string& path, const RemoteFile& file, const Watch& watch);
  int64_t size() const { return size_; }
  // A full disk is an error of one line.
  Status append(std::string_view bytes);
  // Throws away what is there.
  Status restart();
  // True if the sum is right: the file has its final name then. Otherwise it is emptied.
  Result<bool> finish(const std::string& blob);

 private:
  PartialFile(std::string path, RemoteFile file, Descriptor descriptor, Digest digest)
      : path_(std::move(path)),
        file_(std::move(file)),
        descriptor_(std::move(descriptor)),
        digest_(std::move(digest)) {}
  Status read_what_is_there(const Watch& watch);

  std::string path_;
  RemoteFile file_;
  Descriptor descriptor_;
  Digest digest_;
  int64_t size_ = 0;
};

}  // namespace moesaic::hub
