#include "base/file_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/descriptor.h"
#include "base/error.h"
#include "base/open_error.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr const char *kBlobs = ".blob", *kUnfinished = ".part";

std::string head_of(std::string_view key, std::string_view blob) {
  return fmt::format("moesaic blob 1\nkey {}\n{}\nbytes {}\nchecksum {:016x}\n", key.size(), key, blob.size(),
                     fnv1a(blob));
}

bool write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

// A file beside the target that only this call writes. A process in another container or on another host may
// have the same process id.
struct Unfinished {
  std::string path;
  int file;
};
Unfinished open_unfinished(const std::string& target, mode_t mode) {
  static std::atomic<uint64_t> calls{0};
  while (true) {
    Unfinished made{fmt::format("{}.{}-{}{}", target, getpid(), calls++, kUnfinished), -1};
    made.file = open(made.path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (made.file >= 0 || errno != EEXIST) return made;
  }
}

struct Found {
  fs::path path;
  fs::file_time_type used;
  uint64_t bytes;
};

// Blobs, least recently used first. What another process left unfinished an hour ago goes.
std::vector<Found> blobs_in(const std::string& folder) {
  std::vector<Found> found;
  std::error_code code;
  for (fs::directory_iterator at(folder, code), end; !code && at != end; at.increment(code)) {
    std::error_code gone;
    const fs::path path = at->path();
    const fs::file_time_type used = fs::last_write_time(path, gone);
    const uint64_t bytes = gone ? 0 : fs::file_size(path, gone);
    if (gone) continue;
    if (path.extension() == kBlobs) found.push_back({path, used, bytes});
    if (path.extension() == kUnfinished && used < fs::file_time_type::clock::now() - std::chrono::hours(1))
      fs::remove(path, gone);
  }
  std::ranges::sort(found, {}, &Found::used);
  return found;
}

}  // namespace

uint64_t fnv1a(std::string_view bytes, uint64_t hash) {
  for (const char c : bytes) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  return hash;
}

std::string cache_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') return std::string(cache) + "/moesaic";
  const char* home = std::getenv("HOME");
  return home != nullptr && home[0] == '/' ? std::string(home) + "/.cache/moesaic" : "";
}

std::string end_of_links(const std::string& path) {
  constexpr int kMostLinks = 40;  // as Linux follows
  std::error_code code;
  fs::path at = path;
  for (int i = 0; i < kMostLinks && fs::is_symlink(at, code); ++i)
    at = at.parent_path() / fs::read_symlink(at, code);
  return at.string();
}

Status replace_whole(const std::string& path, std::string_view bytes, Readers readers) {
  std::error_code ignored;
  const std::string target = end_of_links(path);
  // Asked once: another process may remove it meanwhile.
  const fs::file_status there = fs::status(target, ignored);
  if (fs::exists(there) && !fs::is_regular_file(there)) return invalid("{}: not a regular file", path);
  const bool for_all = readers == Readers::kAll;
  const auto [fresh, file] = open_unfinished(target, for_all ? 0644 : 0600);
  const bool written = file >= 0 && write_all(file, bytes) && fsync(file) == 0;
  const int reason = errno;
  if (file >= 0) close(file);
  if (written && rename(fresh.c_str(), target.c_str()) == 0) return {};
  const int why = written ? errno : reason;
  if (file >= 0) unlink(fresh.c_str());
  return error(StatusCode::kIo, "{}: {}", path, std::strerror(why));
}

Status write_whole(const std::string& path, std::string_view bytes, Readers readers) {
  std::error_code ignored;
  const fs::path folder = fs::path(end_of_links(path)).parent_path();
  if (fs::create_directories(folder, ignored) && readers == Readers::kOwner)
    fs::permissions(folder, fs::perms::owner_all, ignored);
  return replace_whole(path, bytes, readers);
}

Result<std::string> read_whole(const std::string& path, size_t most) {
  const Descriptor open_file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const int file = open_file.get();
  if (file < 0) return open_error(path);
  struct stat info {};
  if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) return invalid("{}: not a regular file", path);
  const auto size = static_cast<size_t>(info.st_size);
  if (size > most) return invalid("{}: {} bytes are more than the {} that it may have", path, size, most);
  std::string bytes(size, '\0');
  for (size_t done = 0; done < size;) {
    const ssize_t got = read(file, bytes.data() + done, size - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return error(StatusCode::kIo, "{}: {}", path, std::strerror(errno));
    if (got == 0) return error(StatusCode::kIo, "{}: it was cut short while it was read", path);
    done += static_cast<size_t>(got);
  }
  return bytes;
}

std::string FileCache::path_of(std::string_view key) const {
  return fmt::format("{}/{:016x}{}", folder_, fnv1a(key), kBlobs);
}

std::optional<std::string> FileCache::find(std::string_view key) const {
  if (folder_.empty()) return {};
  const std::string path = path_of(key);
  constexpr size_t kMost = 1u << 30;
  const Result<std::string> read = read_whole(path, kMost);
  std::error_code ignored;
  if (!read.ok()) {
    const bool damaged = read.status().code() == StatusCode::kInvalidArgument;
    if (damaged && fs::is_regular_file(path, ignored)) fs::remove(path, ignored);
    return {};
  }
  const std::string& text = read.value();
  // The head holds the blob's length: found from the end of the key, which is known.
  const std::string start = fmt::format("moesaic blob 1\nkey {}\n{}\nbytes ", key.size(), key);
  const size_t digits = text.find("\nchecksum ", start.size()), head = digits + sizeof("\nchecksum ") + 16;
  const bool readable = text.starts_with(start) && digits != std::string::npos && head <= text.size();
  const std::string_view blob = readable ? std::string_view(text).substr(head) : std::string_view();
  if (!readable || text.compare(0, head, head_of(key, blob)) != 0) {
    fs::remove(path, ignored);
    return {};
  }
  fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);
  return std::string(blob);
}

Status FileCache::put(std::string_view key, std::string_view blob) const {
  if (folder_.empty()) return {};
  const std::string path = path_of(key);
  RETURN_IF_ERROR(write_whole(path, head_of(key, blob).append(blob)));
  evict(path);
  return {};
}

void FileCache::evict(const std::string& newest) const {
  const std::vector<Found> found = blobs_in(folder_);
  uint64_t bytes = 0;
  for (const Found& f : found) bytes += f.bytes;
  for (const Found& f : found) {
    if (bytes <= most_bytes_) return;
    std::error_code ignored;
    if (f.path != newest && fs::remove(f.path, ignored)) bytes -= f.bytes;
  }
}

}  // namespace moesaic
