// A file that appears under its name only when it is complete. Until then it has no name at all, so that
// nothing of it is left wherever the program ends; on file systems that have no such files it is
// unfinished(path).
#pragma once

#include <cstdio>
#include <span>
#include <string>

#include "moesaic/status.h"

namespace moesaic {

class OutputFile {
 public:
  // This process's own name for it: no other process has a file of that name.
  static std::string unfinished(const std::string& path);
  // Refuses an existing path unless overwrite. A link stays, and what it leads to is written.
  static Result<OutputFile> create(const std::string& path, bool overwrite);
  ~OutputFile();  // removes what was not committed
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;

  Status write(std::span<const std::byte> bytes);
  Status write(const std::string& bytes) { return write(std::as_bytes(std::span(bytes))); }
  // Zeros up to a multiple of alignment.
  Status pad(size_t alignment);
  size_t position() const { return position_; }
  Status flush();   // to the disk: what does not fit shows here at the latest
  Status commit();  // flushes to the disk and gives it its name

 private:
  OutputFile(std::string path, std::FILE* file, bool named)
      : path_(std::move(path)), file_(file), named_(named) {}
  Status failed() const;
  bool give_name() const;
  std::string path_;
  std::FILE* file_ = nullptr;
  bool named_ = true;  // it is unfinished(path_)
  size_t position_ = 0;
};

}  // namespace moesaic
