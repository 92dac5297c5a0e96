// A file mapped read-only.
//
// The kernel answers a read of bytes that a mapped file has lost (cut short by another program, a disk or a
// network share that fails) with SIGBUS, which ends the process. catch_file_faults() turns that into an error
// that intact() tells.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "moesaic/status.h"

namespace moesaic {

// Installs a handler of SIGBUS: within a mapped file lost bytes then read as zero; any other fault goes to
// the handler that was there before. For programs; a library leaves signals to its host.
void catch_file_faults();

class MappedFile {
 public:
  static Result<std::shared_ptr<const MappedFile>> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& path() const { return path_; }
  // Ok if all that was read so far was really in the file, and nobody has written to it since it was opened.
  // Lost bytes are not seen without catch_file_faults(), nor beyond the first 256 files that are open at a
  // time.
  Status intact() const;
  // The range will not be read again soon: its pages need not stay resident.
  void drop(std::span<const std::byte> range) const;
  // Nor will another program read the range soon: as drop(), and the page cache gives its whole pages up.
  void evict(std::span<const std::byte> range) const;
  // The range will be read soon: asks the kernel to read it from the disk. Returns when all has been asked
  // for.
  void prefetch(std::span<const std::byte> range) const;

 private:
  // When the file was written to last, and its size.
  struct Stamp {
    int64_t seconds = 0, nanoseconds = 0, size = 0;
    bool operator==(const Stamp&) const = default;
  };
  MappedFile(std::string path, int file, std::span<const std::byte> bytes, const Stamp& stamp);
  static Stamp stamp_of(const struct ::stat& info);
  std::string path_;
  int file_;  // its descriptor
  std::span<const std::byte> bytes_;
  Stamp stamp_;       // when it was opened
  int watched_ = -1;  // its place in the handler's table; -1: none
};

}  // namespace moesaic
