#include "engine/disk_tier.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"

namespace moesaic {
namespace {

constexpr const char *kFolder = "moesaic-kv", *kOption = "--kv-disk";
constexpr auto kPause = std::chrono::seconds(10);  // after a write that failed
constexpr uint64_t kFileBlock = 4096;              // bytes that a file takes at least
constexpr size_t kHashDigits = 32;

static_assert(std::is_trivially_copyable_v<KvFileHeader>);

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
  ASSIGN_OR_RETURN(PrivateFolder files, PrivateFolder::open(folder, kFolder, kOption));
  std::unique_ptr<DiskTier> tier(new DiskTier(std::move(files)));
  RETURN_IF_ERROR(tier->read_names());
  RETURN_IF_ERROR(tier->bound(most_bytes));
  return tier;
}

Status DiskTier::read_names() {
  const auto is_part = [](const std::string& name) { return kv_part_of(name).has_value(); };
  ASSIGN_OR_RETURN(const std::vector<PrivateFolder::File> found, folder_.list(is_part, "KV cache"));
  for (const PrivateFolder::File& file : found) {
    const KvPart part = *kv_part_of(file.name);
    if (!index_.has(part.id)) index_.add(part, space_of(file.bytes));
  }
  return {};
}

Status DiskTier::bound(uint64_t most_bytes) {
  struct statvfs fs {};
  if (most_bytes == 0 && statvfs(folder_.path().c_str(), &fs) != 0)
    return error(StatusCode::kIo, "{} {}: {}", kOption, folder_.path(), std::strerror(errno));
  if (most_bytes == 0) most_bytes = (uint64_t{fs.f_bavail} * fs.f_frsize + index_.bytes()) / 2;
  index_.set_most_bytes(most_bytes);
  return {};
}

// ---- parts ----

// The file's time is that of its use: the next process sorts by it.
void DiskTier::touch(const KvPart& part) {
  IndexedTier::touch(part);
  folder_.touch(kv_file_name(part));
}

// Evicts parts until the bytes fit below the bound and below `most`; false if they do not fit below the bound
// even then. Removes the files after it has unlocked.
bool DiskTier::make_room(uint64_t bytes, const KvPartId& kept, uint64_t most) {
  std::vector<KvPart> gone;
  bool fits = false;
  {
    const std::lock_guard lock(mutex_);
    gone = index_.make_room(bytes, kept, most);
    fits = index_.fits(bytes);
  }
  for (const KvPart& part : gone) folder_.remove(kv_file_name(part));
  return fits;
}

bool DiskTier::put(const KvPart& part, std::span<const std::byte> bytes) {
  if (has(part.id)) return true;
  const auto now = std::chrono::steady_clock::now();
  if (now < write_again_) return false;
  const uint64_t space = space_of(sizeof(KvFileHeader) + bytes.size());
  if (!takes(part) || !make_room(space, part.parent())) return false;
  const KvFileHeader header = kv_file_header(key(), part, bytes);
  const auto write = [&] {
    return folder_.write(kv_file_name(part), std::as_bytes(std::span(&header, 1)), bytes);
  };
  int why = write();
  // The disk may be full below the bound. Then, too, the part replaces those that were unused for longest:
  // otherwise the same ones would be kept for ever.
  if ((why == ENOSPC || why == EDQUOT) && make_room(space, part.parent(), stats().bytes)) why = write();
  if (why != 0) {
    if (write_again_ == decltype(write_again_)())
      notice(fmt::format("{}: {}; what does not fit is not kept", folder_.path(), std::strerror(why)));
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
  const std::string name = kv_file_name(part);
  notice(fmt::format("{}/{}: {}; it is removed and computed again", folder_.path(), name, why));
  folder_.remove(name);
  const std::lock_guard lock(mutex_);
  index_.erase(part.id);
  ++counted_.damaged;
}

std::shared_ptr<const KvBytes> DiskTier::get(const KvPart& part, size_t bytes) {
  if (!has(part.id)) return nullptr;
  KvFileHeader header;
  auto body = std::make_shared<KvBytes>(bytes);
  const std::string name = kv_file_name(part);
  const auto [unread, passes] = folder_.read(name, std::as_writable_bytes(std::span(&header, 1)), *body);
  if (passes) return nullptr;
  const char* const fault = unread != nullptr ? unread : kv_file_fault(key(), part, header, *body);
  if (fault != nullptr) {
    if (has(part.id)) lose(part, fault);  // else it had to make room meanwhile
    return nullptr;
  }
  folder_.touch(name);
  const std::lock_guard lock(mutex_);
  index_.touch(part.id);
  return body;
}

}  // namespace moesaic
