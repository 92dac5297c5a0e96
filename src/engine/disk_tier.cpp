#include "engine/disk_tier.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"

namespace moesaic {
namespace {

constexpr const char *kFolder = "moesaic-kv", *kUnfinished = "new.part", *kLock = "lock", *kSecret = "secret";
constexpr auto kPause = std::chrono::seconds(10);  // after a write that failed
constexpr uint64_t kFileBlock = 4096;              // bytes that a file takes at least
constexpr size_t kHashDigits = 32;

static_assert(std::is_trivially_copyable_v<KvFileHeader>);

Descriptor open_in(const Descriptor& folder, const char* name, int flags) {
  return Descriptor(openat(folder.get(), name, flags | O_NOFOLLOW | O_CLOEXEC, 0600));
}

Status failed(const std::string& what) {
  return error(StatusCode::kIo, "--kv-disk {}: {}", what, std::strerror(errno));
}

// A regular file of this user that nobody else may read or write.
bool is_own(const struct stat& info) {
  return S_ISREG(info.st_mode) && info.st_uid == geteuid() && (info.st_mode & 077) == 0;
}

// False at an error and at the file's end.
template <typename Move>
bool move_all(std::array<iovec, 2> parts, const Move& move) {
  for (size_t at = 0; at < parts.size();) {
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

uint64_t space_of(uint64_t bytes) { return (bytes + kFileBlock - 1) / kFileBlock * kFileBlock; }

std::string digits_of(const Hash128& hash) { return fmt::format("{:016x}{:016x}", hash.hi, hash.lo); }

std::optional<Hash128> hash_of(std::string_view digits) {
  Hash128 hash;
  for (const auto& [word, at] : {std::pair(&hash.hi, 0), std::pair(&hash.lo, 16)}) {
    const char *begin = digits.data() + at, *end = begin + 16;
    if (std::from_chars(begin, end, *word, 16).ptr != end) return {};
  }
  return hash;
}

}  // namespace

// ---- files ----

std::string kv_file_name(const KvPart& part) {
  return digits_of(part.id.block) + "-" + digits_of(part.before) +
         (part.id.kind == KvKind::kFull ? ".full" : ".win");
}

std::optional<KvPart> kv_part_of(std::string_view name) {
  if (name.size() < 2 * kHashDigits + 1) return {};
  const auto block = hash_of(name.substr(0, kHashDigits)),
             before = hash_of(name.substr(kHashDigits + 1, kHashDigits));
  if (!block || !before) return {};
  for (const KvKind kind : {KvKind::kFull, KvKind::kWindow}) {
    const KvPart part{.id = {*block, kind}, .before = *before};
    if (kv_file_name(part) == name) return part;
  }
  return {};
}

KvFileHeader kv_file_header(const HashKey& key, const KvPart& part, std::span<const std::byte> bytes) {
  KvFileHeader h{.kind = static_cast<uint32_t>(part.id.kind),
                 .block = part.id.block,
                 .before = part.before,
                 .bytes = bytes.size()};
  const auto head = std::as_bytes(std::span(&h, 1));
  h.checksum = SipHash(key).add(head.first(offsetof(KvFileHeader, checksum))).add(bytes).finish();
  return h;
}

const char* kv_file_fault(const HashKey& key, const KvPart& part, const KvFileHeader& header,
                          std::span<const std::byte> bytes) {
  const KvFileHeader own = kv_file_header(key, part, bytes);
  if (std::memcmp(&header, &own, offsetof(KvFileHeader, checksum)) != 0) return "its header is not its own";
  return header.checksum == own.checksum ? nullptr : "its checksum is wrong";
}

// ---- the folder ----

Result<std::unique_ptr<DiskTier>> DiskTier::open(const std::string& folder, uint64_t most_bytes) {
  std::unique_ptr<DiskTier> tier(new DiskTier(folder));
  RETURN_IF_ERROR(tier->open_folder());
  RETURN_IF_ERROR(tier->read_key());
  RETURN_IF_ERROR(tier->read_names());
  RETURN_IF_ERROR(tier->bound(most_bytes));
  return tier;
}

Status DiskTier::open_folder() {
  if (mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST) return failed(folder_);
  folder_ += std::string("/") + kFolder;
  if (mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST) return failed(folder_);
  dir_ = Descriptor(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat info {};
  if (dir_.get() < 0 || fstat(dir_.get(), &info) != 0) return failed(folder_);
  if (info.st_uid != geteuid() || (info.st_mode & 077) != 0)
    return error(StatusCode::kIo, "--kv-disk {}: the folder must be this user's alone (chmod 700)", folder_);
  Descriptor lock = open_in(dir_, kLock, O_RDWR | O_CREAT);
  if (lock.get() < 0) return failed(folder_ + "/" + kLock);
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0)
    return error(StatusCode::kIo, "--kv-disk {}: {}", folder_,
                 errno == EWOULDBLOCK ? "another model or process uses it; each needs a folder of its own"
                                      : std::strerror(errno));
  lock_ = std::move(lock);
  return {};
}

// A key that is damaged, or that others may have read, is no key any more.
Status DiskTier::read_key() {
  const iovec into{.iov_base = key_.data(), .iov_len = sizeof key_};
  {
    const Descriptor file = open_in(dir_, kSecret, O_RDONLY | O_NONBLOCK);
    struct stat info {};
    if (file.get() >= 0 && fstat(file.get(), &info) == 0 && is_own(info) && info.st_size == sizeof key_ &&
        move_all({into}, [&](iovec* v, int n) { return readv(file.get(), v, n); }))
      return {};
  }
  key_ = random_hash_key();
  const Descriptor file = open_in(dir_, kUnfinished, O_WRONLY | O_CREAT | O_TRUNC);
  if (file.get() < 0 || !move_all({into}, [&](iovec* v, int n) { return writev(file.get(), v, n); }) ||
      fsync(file.get()) != 0 || renameat(dir_.get(), kUnfinished, dir_.get(), kSecret) != 0)
    return failed(folder_ + "/" + kSecret);
  return {};
}

Status DiskTier::read_names() {
  const int copy = openat(dir_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const names = copy >= 0 ? fdopendir(copy) : nullptr;
  if (names == nullptr) return failed(folder_);
  using Found = std::tuple<int64_t, int64_t, KvPart, uint64_t>;  // time of use, bytes
  std::vector<Found> found;
  std::string stranger;
  int strangers = 0;
  for (const dirent* entry = readdir(names); entry != nullptr; entry = readdir(names)) {
    const std::string name = entry->d_name;
    if (name == "." || name == ".." || name == kLock || name == kSecret || name == kUnfinished) continue;
    const auto part = kv_part_of(name);
    struct stat info {};
    if (part && fstatat(dir_.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 && is_own(info)) {
      found.emplace_back(info.st_mtim.tv_sec, info.st_mtim.tv_nsec, *part,
                         space_of(static_cast<uint64_t>(info.st_size)));
    } else if (++strangers == 1) {
      stranger = name;
    }
  }
  closedir(names);
  const auto time_of_use = [](const Found& f) { return std::pair(std::get<0>(f), std::get<1>(f)); };
  std::ranges::sort(found, {}, time_of_use);
  for (const auto& [seconds, nanoseconds, part, bytes] : found)
    if (!index_.has(part.id)) index_.add(part, bytes);
  if (strangers > 0)
    notice(fmt::format("{}: {} files are not this user's KV cache and are ignored, '{}' for one", folder_,
                       strangers, stranger));
  return {};
}

Status DiskTier::bound(uint64_t most_bytes) {
  struct statvfs fs {};
  if (most_bytes == 0 && fstatvfs(dir_.get(), &fs) != 0) return failed(folder_);
  if (most_bytes == 0) most_bytes = (uint64_t{fs.f_bavail} * fs.f_frsize + index_.bytes()) / 2;
  index_.set_most_bytes(most_bytes);
  make_room(0);
  return {};
}

// ---- parts ----

// The file's time is that of its use: the next process sorts by it.
void DiskTier::touch(const KvPart& part) {
  IndexedTier::touch(part);
  utimensat(dir_.get(), kv_file_name(part).c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
}

// Evicts parts until the bytes fit; false if they do not even then. Removes the files after it has unlocked.
bool DiskTier::make_room(uint64_t bytes) {
  std::vector<KvPart> gone;
  bool fits = false;
  {
    const std::lock_guard lock(mutex_);
    gone = index_.make_room(bytes);
    fits = index_.fits(bytes);
  }
  for (const KvPart& part : gone) unlinkat(dir_.get(), kv_file_name(part).c_str(), 0);
  return fits;
}

// Gives 0, or the number of the error.
int DiskTier::write(const KvPart& part, std::span<const std::byte> bytes) const {
  KvFileHeader header = kv_file_header(key_, part, bytes);
  const Descriptor file = open_in(dir_, kUnfinished, O_WRONLY | O_CREAT | O_TRUNC);
  const std::array<iovec, 2> from{iovec{.iov_base = &header, .iov_len = sizeof header},
                                  iovec{.iov_base = const_cast<std::byte*>(bytes.data()),  // is only read
                                        .iov_len = bytes.size()}};
  errno = 0;
  if (file.get() >= 0 && move_all(from, [&](iovec* v, int n) { return writev(file.get(), v, n); }) &&
      renameat(dir_.get(), kUnfinished, dir_.get(), kv_file_name(part).c_str()) == 0)
    return 0;
  const int why = errno != 0 ? errno : EIO;
  unlinkat(dir_.get(), kUnfinished, 0);
  return why;
}

bool DiskTier::put(const KvPart& part, std::span<const std::byte> bytes) {
  if (has(part.id)) return true;
  const auto now = std::chrono::steady_clock::now();
  if (now < write_again_) return false;
  const uint64_t space = space_of(sizeof(KvFileHeader) + bytes.size());
  if (!make_room(space)) return false;
  if (const int why = write(part, bytes); why != 0) {
    if (write_again_ == decltype(write_again_)())
      notice(fmt::format("{}: {}; what does not fit is not kept", folder_, std::strerror(why)));
    write_again_ = now + kPause;
    return false;
  }
  write_again_ = {};
  const std::lock_guard lock(mutex_);
  index_.add(part, space);
  counted_.written_bytes += bytes.size();
  return true;
}

void DiskTier::lose(const KvPart& part, const char* why) {
  notice(fmt::format("{}/{}: {}; it is removed and computed again", folder_, kv_file_name(part), why));
  unlinkat(dir_.get(), kv_file_name(part).c_str(), 0);
  const std::lock_guard lock(mutex_);
  index_.erase(part.id);
  ++counted_.damaged;
}

std::shared_ptr<const KvBytes> DiskTier::get(const KvPart& part, size_t bytes) {
  if (!has(part.id)) return nullptr;
  const Descriptor file = open_in(dir_, kv_file_name(part).c_str(), O_RDONLY | O_NONBLOCK);
  struct stat info {};
  if (file.get() < 0 || fstat(file.get(), &info) != 0) {
    if (has(part.id)) lose(part, std::strerror(errno));  // else it had to make room meanwhile
    return nullptr;
  }
  KvFileHeader header;
  if (!is_own(info) || static_cast<uint64_t>(info.st_size) != sizeof header + bytes) {
    lose(part, "it has another size, or is not this user's");
    return nullptr;
  }
  auto body = std::make_shared<KvBytes>(bytes);
  const std::array<iovec, 2> into{iovec{.iov_base = &header, .iov_len = sizeof header},
                                  iovec{.iov_base = body->data(), .iov_len = bytes}};
  if (!move_all(into, [&](iovec* v, int n) { return readv(file.get(), v, n); })) {
    lose(part, "it cannot be read");
    return nullptr;
  }
  if (const char* fault = kv_file_fault(key_, part, header, *body)) {
    lose(part, fault);
    return nullptr;
  }
  futimens(file.get(), nullptr);
  const std::lock_guard lock(mutex_);
  index_.touch(part.id);
  counted_.read_bytes += bytes;
  return body;
}

}  // namespace moesaic
