#include "checkpoint/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>
#include <utility>

#include "base/error.h"
#include "base/file_cache.h"

namespace moesaic {
namespace {

// The path by which a file without a name gets one.
std::string descriptor_path(std::FILE* file) { return fmt::format("/proc/self/fd/{}", fileno(file)); }

// Null where the file system has no files without names, or what would name it is not there.
std::FILE* open_nameless(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const int fd = open(folder.empty() ? "." : folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
  std::FILE* file = fd >= 0 ? fdopen(fd, "wb") : nullptr;
  if (file == nullptr && fd >= 0) close(fd);
  if (file == nullptr || access(descriptor_path(file).c_str(), F_OK) == 0) return file;
  std::fclose(file);
  return nullptr;
}

}  // namespace

std::string OutputFile::unfinished(const std::string& path) {
  static const uint32_t own = std::random_device()();
  return fmt::format("{}.{:08x}.part", end_of_links(path), own);
}

Result<OutputFile> OutputFile::create(const std::string& path, bool overwrite) {
  std::error_code ignored;
  if (!overwrite && std::filesystem::exists(path, ignored))
    return invalid("{}: it exists already; pass --force to replace it", path);
  const std::string target = end_of_links(path);
  std::FILE* file = open_nameless(target);
  const bool named = file == nullptr;
  if (named) file = std::fopen(unfinished(path).c_str(), "wbx");  // x: it is no file that was there
  if (file == nullptr) return error(StatusCode::kIo, "{}: cannot write: {}", path, std::strerror(errno));
  return OutputFile(target, file, named);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::exchange(other.file_, nullptr)),
      named_(other.named_),
      position_(other.position_) {}

OutputFile::~OutputFile() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  if (named_) std::remove(unfinished(path_).c_str());
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

bool OutputFile::give_name() const {
  return named_ || linkat(AT_FDCWD, descriptor_path(file_).c_str(), AT_FDCWD, unfinished(path_).c_str(),
                          AT_SYMLINK_FOLLOW) == 0;
}

Status OutputFile::flush() {
  return std::fflush(file_) == 0 && fsync(fileno(file_)) == 0 ? Status() : failed();
}

Status OutputFile::commit() {
  RETURN_IF_ERROR(flush());
  if (!give_name()) return failed();
  std::FILE* file = std::exchange(file_, nullptr);
  if (std::fclose(file) != 0 || std::rename(unfinished(path_).c_str(), path_.c_str()) != 0) {
    Status status = failed();
    std::remove(unfinished(path_).c_str());
    return status;
  }
  return {};
}

}  // namespace moesaic
