#include "checkpoint/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "base/open_error.h"
#include "base/page_advice.h"

namespace moesaic {
namespace {

// Mapped files as the signal handler finds them. begin is 0 where a place is free, 1 while it is being taken.
struct Watched {
  std::atomic<uintptr_t> begin{0}, end{0};
  std::atomic<bool> lost{false};
};
std::array<Watched, 256> watched_files;
struct sigaction handler_before;

// Puts zeros in place of what cannot be read: up to 2 MB, so that a file's lost end takes few faults.
bool replace_lost(uintptr_t at) {
  constexpr uintptr_t kMost = 2 << 20;
  for (Watched& file : watched_files) {
    const uintptr_t begin = file.begin.load(), end = file.end.load();
    if (begin <= 1 || at < begin || at >= end) continue;
    const auto page = static_cast<uintptr_t>(getpagesize());
    const uintptr_t from = at / page * page;
    file.lost.store(true);
    return mmap(reinterpret_cast<void*>(from), std::min(end - from, kMost), PROT_READ,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
  }
  return false;
}

void on_bus_error(int, siginfo_t* info, void*) {
  const int error_before = errno;
  // Otherwise the instruction runs again and faults again, for the earlier handler.
  if (!replace_lost(reinterpret_cast<uintptr_t>(info->si_addr))) sigaction(SIGBUS, &handler_before, nullptr);
  errno = error_before;
}

int watch(std::span<const std::byte> bytes) {
  for (int i = 0; i < std::ssize(watched_files); ++i) {
    Watched& file = watched_files[i];
    uintptr_t unused = 0;
    if (!file.begin.compare_exchange_strong(unused, 1)) continue;
    file.lost = false;
    file.end = reinterpret_cast<uintptr_t>(bytes.data() + bytes.size());
    file.begin = reinterpret_cast<uintptr_t>(bytes.data());
    return i;
  }
  return -1;
}

}  // namespace

namespace {
// A clone without Git LFS has such a pointer in place of a large file.
bool is_lfs_pointer(std::span<const std::byte> bytes) {
  constexpr std::string_view kBegin = "version https://git-lfs.github.com/spec/";
  return bytes.size() < 1024 &&
         std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()).starts_with(kBegin);
}
}  // namespace

void catch_file_faults() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, &handler_before);
}

Result<std::shared_ptr<const MappedFile>> MappedFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return open_error(path);
  struct stat info {};
  const bool regular = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  void* data = nullptr;
  const auto size = static_cast<size_t>(info.st_size);
  if (regular && size > 0) data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int mmap_error = errno;
  if (regular && size > 0 && data != MAP_FAILED) {
    std::shared_ptr<const MappedFile> file(
        new MappedFile(path, fd, {static_cast<const std::byte*>(data), size}, stamp_of(info)));
    if (!is_lfs_pointer(file->bytes())) return file;
    return invalid("{}: a pointer of Git LFS, not the file itself; run 'git lfs pull' in its folder", path);
  }
  close(fd);
  if (!regular) return invalid("{}: not a regular file", path);
  if (size == 0) return invalid("{}: the file is empty", path);
  return error(StatusCode::kIo, "{}: cannot map it: {}", path, std::strerror(mmap_error));
}

MappedFile::MappedFile(std::string path, int file, std::span<const std::byte> bytes, const Stamp& stamp)
    : path_(std::move(path)), file_(file), bytes_(bytes), stamp_(stamp), watched_(watch(bytes)) {}

MappedFile::Stamp MappedFile::stamp_of(const struct ::stat& info) {
  return {.seconds = info.st_mtim.tv_sec, .nanoseconds = info.st_mtim.tv_nsec, .size = info.st_size};
}

MappedFile::~MappedFile() {
  if (watched_ >= 0) watched_files[watched_].begin = 0;
  munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  close(file_);
}

Status MappedFile::intact() const {
  if (watched_ >= 0 && watched_files[watched_].lost)
    return error(StatusCode::kIo, "{}: it could not be read to its end; it was cut short, or its disk failed",
                 path_);
  struct stat now {};
  if (fstat(file_, &now) != 0 || stamp_of(now) == stamp_) return {};
  return error(StatusCode::kIo, "{}: it was written to while it was in use; start again once it is whole",
               path_);
}

void MappedFile::drop(std::span<const std::byte> range) const {
  const uintptr_t page = page_bytes();
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(range.data()) + page - 1) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(range.data() + range.size()) / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

// Pages that are mapped stay in the cache: they are unmapped first.
void MappedFile::evict(std::span<const std::byte> range) const {
  drop(range);
  posix_fadvise(file_, range.data() - bytes_.data(), static_cast<off_t>(range.size()), POSIX_FADV_DONTNEED);
}

// Requests do not wait for the disk until its queue is full.
void MappedFile::prefetch(std::span<const std::byte> range) const { advise_pages(range, MADV_WILLNEED); }

}  // namespace moesaic
