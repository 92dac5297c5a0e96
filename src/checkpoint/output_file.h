// A file that appears under its name only when it is complete.
#pragma once

#include <cstdio>
#include <span>
#include <string>

#include "moesaic/status.h"

namespace moesaic {

class OutputFile {
 public:
  static std::string unfinished(const std::string& path) { return path + ".part"; }
  // Writes to unfinished(path) until commit(). Refuses an existing path unless overwrite.
  static Result<OutputFile> create(const std::string& path, bool overwrite);
  ~OutputFile();  // removes what was not committed
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;

  Status write(std::span<const std::byte> bytes);
  Status write(const std::string& bytes) { return write(std::as_bytes(std::span(bytes))); }
  // Zeros up to a multiple of alignment.
  Status pad(size_t alignment);
  size_t position() const { return position_; }
  Status commit();  // flushes to the disk and renames

 private:
  OutputFile(std::string path, std::FILE* file) : path_(std::move(path)), file_(file) {}
  Status failed() const;
  std::string path_;
  std::FILE* file_ = nullptr;
  size_t position_ = 0;
};

}  // namespace moesaic
