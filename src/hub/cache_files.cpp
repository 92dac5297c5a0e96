#include "hub/cache_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "base/file_cache.h"
#include "base/strings.h"
#include "checkpoint/model_places.h"

namespace moesaic::hub {

namespace fs = std::filesystem;

namespace {

// https://bford.info/cachedir: programs for backups leave such folders out.
constexpr const char* kCacheTag =
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# This file is a cache directory tag created by moesaic, as huggingface_hub does.\n";

Status failed(const std::string& path, int reason) {
  const bool full = reason == ENOSPC || reason == EDQUOT || reason == EFBIG;
  return error(StatusCode::kIo, "{}: {}{}", path, std::strerror(reason),
               full ? "; what has come is kept: make room and run it again" : "");
}

std::string size_words(double bytes) {
  constexpr double kMegabyte = 1e6, kGigabyte = 1e9;
  return bytes < kGigabyte ? fmt::format("{:.1f} MB", bytes / kMegabyte)
                           : fmt::format("{:.1f} GB", bytes / kGigabyte);
}

Status make_folder(const fs::path& path) {
  std::error_code code;
  fs::create_directories(path, code);
  return code && !is_folder(path) ? failed(path.string(), code.value()) : Status();
}

Status write_at(int file, std::string_view bytes, int64_t offset, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(file, bytes.data(), bytes.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed(path, errno);
    bytes.remove_prefix(static_cast<size_t>(n));
    offset += n;
  }
  return {};
}

// Replaces a small file in one step. Unlike replace_whole() it leaves the mode to the umask, as
// huggingface_hub does: users who share a cache write to each other's refs.
Status replace_file(const fs::path& path, std::string_view text) {
  const std::string fresh = fmt::format("{}.{}.tmp", path.string(), getpid());
  Descriptor file(open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (file.get() < 0) return failed(fresh, errno);
  Status written = write_at(file.get(), text, 0, fresh);
  if (written.ok() && rename(fresh.c_str(), path.c_str()) != 0) written = failed(path.string(), errno);
  if (!written.ok()) unlink(fresh.c_str());
  return written;
}

bool has_size(const std::string& path, int64_t size) {
  std::error_code code;
  const auto bytes = fs::file_size(path, code);
  return !code && static_cast<int64_t>(bytes) == size;
}

bool same_file(int file, const std::string& path) {
  struct stat open_one {
  }, named{};
  return fstat(file, &open_one) == 0 && stat(path.c_str(), &named) == 0 && open_one.st_ino == named.st_ino &&
         open_one.st_dev == named.st_dev;
}

}  // namespace

RepositoryCache::RepositoryCache(std::string cache, const std::string& repository)
    : cache_(std::move(cache)),
      folder_(cache_ + "/" + hub_folder(repository)),
      locks_(cache_ + "/.locks/" + hub_folder(repository)) {}

Status RepositoryCache::make(const std::string& commit) const {
  for (const std::string& folder : {folder_ + "/blobs", folder_ + "/refs", snapshot(commit), locks_})
    RETURN_IF_ERROR(make_folder(folder));
  const std::string tag = cache_ + "/CACHEDIR.TAG";
  if (!is_there(tag)) return replace_file(tag, kCacheTag);
  return {};
}

std::string RepositoryCache::blob(const RemoteFile& file) const { return folder_ + "/blobs/" + file.sum; }

std::string RepositoryCache::snapshot(const std::string& commit) const {
  return folder_ + "/snapshots/" + commit;
}

bool RepositoryCache::has(const RemoteFile& file, const std::string& commit) const {
  return has_size(blob(file), file.size) || is_linked(file, commit);
}

bool RepositoryCache::is_linked(const RemoteFile& file, const std::string& commit) const {
  return has_size(snapshot(commit) + "/" + file.path, file.size);
}

int64_t RepositoryCache::bytes_there(const RemoteFile& file, const std::string& commit) const {
  if (has(file, commit)) return file.size;
  struct stat info {};
  const bool there = lstat(incomplete(file).c_str(), &info) == 0 && S_ISREG(info.st_mode);
  return there && info.st_size <= file.size ? info.st_size : 0;
}

Result<std::optional<Descriptor>> RepositoryCache::try_lock(const RemoteFile& file) const {
  const std::string path = locks_ + "/" + file.sum + ".lock";
  constexpr int kTries = 10;  // its holder may have removed it meanwhile
  for (int i = 0; i < kTries; ++i) {
    Descriptor lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0664));
    if (lock.get() < 0) return failed(path, errno);
    const bool locked = flock(lock.get(), LOCK_EX | LOCK_NB) == 0;
    if (!locked && errno == EWOULDBLOCK) return std::optional<Descriptor>();
    // Some network file systems have no locks: the sum still keeps a damaged file from getting its name.
    if (!locked || same_file(lock.get(), path)) return std::optional(std::move(lock));
  }
  return std::optional<Descriptor>();
}

Status RepositoryCache::link(const RemoteFile& file, const std::string& commit) const {
  const fs::path link = fs::path(snapshot(commit)) / file.path;
  RETURN_IF_ERROR(make_folder(link.parent_path()));
  std::string target = "../../blobs/" + file.sum;
  for (int64_t i = std::ranges::count(file.path, '/'); i > 0; --i) target.insert(0, "../");
  if (has_size(link.string(), file.size)) return {};
  if (is_folder(link))
    return error(StatusCode::kIo, "{}: a folder stands where a file belongs", link.string());
  const std::string fresh = fmt::format("{}.{}.tmp", link.string(), getpid());
  unlink(fresh.c_str());
  // A file system without links, such as FAT: the file itself, as huggingface_hub does it.
  const bool linked = symlink(target.c_str(), fresh.c_str()) == 0;
  if (rename(linked ? fresh.c_str() : blob(file).c_str(), link.c_str()) != 0)
    return failed(link.string(), errno);
  return {};
}

Status RepositoryCache::set_current(const std::string& revision, const std::string& commit) const {
  const std::string ref = folder_ + "/refs/" + revision;
  constexpr size_t kMostRef = 256;  // bytes
  const Result<std::string> current = read_whole(ref, kMostRef);
  return current.ok() && trimmed(current.value(), " \r\n") == commit ? Status() : replace_file(ref, commit);
}

Status RepositoryCache::check_room(int64_t bytes) const {
  fs::path place = fs::path(cache_);
  while (!is_folder(place) && place.has_relative_path()) place = place.parent_path();
  if (place.empty()) place = ".";
  struct statvfs info {};
  if (statvfs(place.c_str(), &info) != 0) return {};
  const double left = static_cast<double>(info.f_bavail) * static_cast<double>(info.f_frsize);
  const auto wanted = static_cast<double>(bytes);
  if (left >= wanted) return {};
  return error(StatusCode::kIo,
               "{}: {} are to come and {} are free; make room, or name another folder with HF_HUB_CACHE",
               cache_, size_words(wanted), size_words(left));
}

namespace {

Result<Digest> digest_for(const RemoteFile& file) {
  constexpr size_t kSha256 = 64;  // digits
  return file.sum.size() == kSha256 ? Digest::sha256() : Digest::git_blob(file.size);
}

}  // namespace

Result<PartialFile> PartialFile::open(const std::string& path, const RemoteFile& file, const Watch& watch) {
  ASSIGN_OR_RETURN(Digest digest, digest_for(file));
  Descriptor descriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
  struct stat info {};
  if (descriptor.get() < 0 || fstat(descriptor.get(), &info) != 0) return failed(path, errno);
  if (!S_ISREG(info.st_mode)) return error(StatusCode::kIo, "{}: not a regular file", path);
  PartialFile partial(path, file, std::move(descriptor), std::move(digest));
  if (info.st_size > file.size) {
    RETURN_IF_ERROR(partial.restart());
  } else {
    RETURN_IF_ERROR(partial.read_what_is_there(watch));
  }
  return partial;
}

Status PartialFile::read_what_is_there(const Watch& watch) {
  std::vector<char> bytes(size_t{4} << 20);
  for (;;) {
    if (watch.cancelled()) return {StatusCode::kCancelled, "interrupted"};
    const ssize_t n = pread(descriptor_.get(), bytes.data(), bytes.size(), size_);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed(path_, errno);
    if (n == 0) return {};
    digest_.add({bytes.data(), static_cast<size_t>(n)});
    size_ += n;
  }
}

Status PartialFile::append(std::string_view bytes) {
  Status written = write_at(descriptor_.get(), bytes, size_, path_);
  if (!written.ok()) {
    // The sum has none of these bytes, so those that were written are removed.
    [[maybe_unused]] const int ignored = ftruncate(descriptor_.get(), size_);
    return written;
  }
  digest_.add(bytes);
  size_ += static_cast<int64_t>(bytes.size());
  return {};
}

Status PartialFile::restart() {
  if (ftruncate(descriptor_.get(), 0) != 0) return failed(path_, errno);
  ASSIGN_OR_RETURN(digest_, digest_for(file_));
  size_ = 0;
  return {};
}

Result<bool> PartialFile::finish(const std::string& blob) {
  if (digest_.hex() != file_.sum) {
    RETURN_IF_ERROR(restart());
    return false;
  }
  // The file is on the disk before it has the name by which it is trusted.
  if (fdatasync(descriptor_.get()) != 0) return failed(path_, errno);
  if (rename(path_.c_str(), blob.c_str()) == 0) return true;
  // Where flock() keeps nobody out, another program that wrote the same file may have given it its name.
  if (errno == ENOENT && has_size(blob, file_.size)) return true;
  return failed(blob, errno);
}

}  // namespace moesaic::hub
