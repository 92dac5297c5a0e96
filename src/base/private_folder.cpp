#include "base/private_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <tuple>

#include "base/error.h"
#include "base/log.h"

namespace moesaic {
namespace {

constexpr const char *kNewFile = "new.part", *kLock = "lock", *kSecret = "secret";

Descriptor open_in(const Descriptor& folder, const char* name, int flags) {
  return Descriptor(openat(folder.get(), name, flags | O_NOFOLLOW | O_CLOEXEC, 0600));
}

// A regular file of this user that nobody else may read or write.
bool is_own(const struct stat& info) {
  return S_ISREG(info.st_mode) && info.st_uid == geteuid() && (info.st_mode & 077) == 0;
}

// The kernel's own stamps stand still for some milliseconds, and files of one such time would have no order.
std::array<timespec, 2> precise_now() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return {now, now};
}

iovec io_of(std::span<const std::byte> part) {
  return {.iov_base = const_cast<std::byte*>(part.data()), .iov_len = part.size()};  // writev only reads it
}

// False at an error and at the file's end.
template <typename Move>
bool move_all(std::array<iovec, 2> parts, const Move& move) {
  size_t at = 0;
  while (at < parts.size() && parts[at].iov_len == 0) ++at;
  while (at < parts.size()) {
    const ssize_t moved = move(&parts[at], static_cast<int>(parts.size() - at));
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return false;
    for (auto left = static_cast<size_t>(moved); at < parts.size();) {
      const size_t taken = std::min(left, parts[at].iov_len);
      parts[at].iov_base = static_cast<char*>(parts[at].iov_base) + taken;
      parts[at].iov_len -= taken, left -= taken;
      if (parts[at].iov_len > 0) break;
      ++at;
    }
  }
  return true;
}

}  // namespace

Status PrivateFolder::failed(const std::string& what) const {
  return error(StatusCode::kIo, "{} {}: {}", option_, what, std::strerror(errno));
}

Result<PrivateFolder> PrivateFolder::open(const std::string& folder, std::string_view name,
                                          std::string_view option) {
  PrivateFolder opened(folder, option);
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return opened.failed(folder);
  opened.path_ += fmt::format("/{}", name);
  RETURN_IF_ERROR(opened.open_locked());
  RETURN_IF_ERROR(opened.read_key());
  return opened;
}

Status PrivateFolder::open_locked() {
  if (mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST) return failed(path_);
  dir_ = Descriptor(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat info {};
  if (dir_.get() < 0 || fstat(dir_.get(), &info) != 0) return failed(path_);
  if (info.st_uid != geteuid() || (info.st_mode & 077) != 0)
    return error(StatusCode::kIo, "{} {}: the folder must be this user's alone (chmod 700)", option_, path_);
  lock_ = open_in(dir_, kLock, O_RDWR | O_CREAT);
  if (lock_.get() < 0) return failed(path_ + "/" + kLock);
  if (flock(lock_.get(), LOCK_EX | LOCK_NB) != 0)
    return error(StatusCode::kIo, "{} {}: {}", option_, path_,
                 errno == EWOULDBLOCK ? "another model or process uses it; each needs a folder of its own"
                                      : std::strerror(errno));
  return {};
}

// A key that is damaged, or that others may have read, is no key any more. A new one is on the disk before
// anything is written by it.
Status PrivateFolder::read_key() {
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(key_));
  const Fault fault = read(kSecret, bytes, {});
  if (fault.text == nullptr) return {};
  if (fault.passes) return error(StatusCode::kIo, "{} {}/{}: {}", option_, path_, kSecret, fault.text);
  key_ = random_hash_key();
  errno = write(kSecret, bytes, {});
  if (errno != 0 || fsync(open_in(dir_, kSecret, O_RDONLY).get()) != 0) return failed(path_ + "/" + kSecret);
  return {};
}

Result<std::vector<PrivateFolder::File>> PrivateFolder::list(
    const std::function<bool(const std::string& name)>& is_ours, std::string_view what) const {
  const int copy = openat(dir_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const names = copy >= 0 ? fdopendir(copy) : nullptr;
  if (names == nullptr) return failed(path_);
  std::vector<File> found;
  std::string stranger;
  int strangers = 0;
  for (const dirent* entry = readdir(names); entry != nullptr; entry = readdir(names)) {
    const std::string name = entry->d_name;
    if (name == "." || name == ".." || name == kLock || name == kSecret || name == kNewFile) continue;
    struct stat info {};
    if (is_ours(name) && fstatat(dir_.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 && is_own(info)) {
      found.push_back({name, info.st_mtim.tv_sec, info.st_mtim.tv_nsec, static_cast<uint64_t>(info.st_size)});
    } else if (++strangers == 1) {
      stranger = name;
    }
  }
  closedir(names);
  std::ranges::sort(found, {}, [](const File& f) { return std::tie(f.seconds, f.nanoseconds); });
  if (strangers > 0)
    notice(fmt::format("{}: {} files are not this user's {} and are ignored, '{}' for one", path_, strangers,
                       what, stranger));
  return found;
}

int PrivateFolder::write(const std::string& name, std::span<const std::byte> head,
                         std::span<const std::byte> body) const {
  errno = 0;
  const Descriptor file = open_in(dir_, kNewFile, O_WRONLY | O_CREAT | O_TRUNC);
  if (file.get() >= 0 &&
      move_all({io_of(head), io_of(body)}, [&](iovec* v, int n) { return writev(file.get(), v, n); }) &&
      futimens(file.get(), precise_now().data()) == 0 &&
      renameat(dir_.get(), kNewFile, dir_.get(), name.c_str()) == 0)
    return 0;
  const int why = errno != 0 ? errno : EIO;
  unlinkat(dir_.get(), kNewFile, 0);
  return why;
}

PrivateFolder::Fault PrivateFolder::read(const std::string& name, std::span<std::byte> head,
                                         std::span<std::byte> body) const {
  const Descriptor file = open_in(dir_, name.c_str(), O_RDONLY | O_NONBLOCK);
  struct stat info {};
  if (file.get() < 0 || fstat(file.get(), &info) != 0)
    return {std::strerror(errno), errno == EMFILE || errno == ENFILE || errno == ENOMEM};
  if (!is_own(info) || static_cast<uint64_t>(info.st_size) != head.size() + body.size())
    return {"it has another size, or is not this user's"};
  const bool whole =
      move_all({io_of(head), io_of(body)}, [&](iovec* v, int n) { return readv(file.get(), v, n); });
  return {whole ? nullptr : "it cannot be read"};
}

void PrivateFolder::touch(const std::string& name) const {
  utimensat(dir_.get(), name.c_str(), precise_now().data(), AT_SYMLINK_NOFOLLOW);
}

void PrivateFolder::remove(const std::string& name) const { unlinkat(dir_.get(), name.c_str(), 0); }

}  // namespace moesaic
