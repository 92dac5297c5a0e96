#include "checkpoint/output_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"

namespace moesaic {

Result<OutputFile> OutputFile::create(const std::string& path, bool overwrite) {
  std::error_code ignored;
  if (!overwrite && std::filesystem::exists(path, ignored))
    return invalid("{}: it exists already; pass --force to replace it", path);
  std::FILE* file = std::fopen(unfinished(path).c_str(), "wb");
  if (file == nullptr) return error(StatusCode::kIo, "{}: cannot write: {}", path, std::strerror(errno));
  return OutputFile(path, file);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)), file_(std::exchange(other.file_, nullptr)), position_(other.position_) {}

OutputFile::~OutputFile() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  std::remove(unfinished(path_).c_str());
}

Status OutputFile::failed() const {
  return error(StatusCode::kIo, "{}: cannot write: {}", path_, std::strerror(errno));
}

Status OutputFile::write(std::span<const std::byte> bytes) {
  if (!bytes.empty() && std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size()) return failed();
  position_ += bytes.size();
  return {};
}

Status OutputFile::pad(size_t alignment) {
  return write(std::string((alignment - position_ % alignment) % alignment, '\0'));
}

Status OutputFile::commit() {
  if (std::fflush(file_) != 0 || fsync(fileno(file_)) != 0) return failed();
  std::FILE* file = std::exchange(file_, nullptr);
  if (std::fclose(file) != 0 || std::rename(unfinished(path_).c_str(), path_.c_str()) != 0) {
    Status status = failed();
    std::remove(unfinished(path_).c_str());
    return status;
  }
  return {};
}

}  // namespace moesaic
