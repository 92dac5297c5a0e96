#include <cstring>

#include "base/error.h"
#include "engine/disk_tier.h"

using namespace moesaic;

namespace {

constexpr HashKey kKey{1, 2};

// A name is a part's or is refused.
void read_name(std::string_view name) {
  const auto part = kv_part_of(name);
  MOESAIC_CHECK(!part || kv_file_name(*part) == name);
}

// A file is the part's if it is what would be written for it, and not otherwise.
void read_file(std::span<const std::byte> file) {
  KvFileHeader header;
  if (file.size() < sizeof header) return;
  std::memcpy(&header, file.data(), sizeof header);
  const auto bytes = file.subspan(sizeof header);
  for (const KvKind kind : {KvKind::kFull, KvKind::kWindow}) {
    const KvPart part{.id = {header.block, kind}, .before = header.before};
    const KvFileHeader written = kv_file_header(kKey, part, bytes);
    MOESAIC_CHECK(kv_file_fault(kKey, part, written, bytes) == nullptr);
    const bool same = std::memcmp(&written, &header, sizeof header) == 0;
    MOESAIC_CHECK((kv_file_fault(kKey, part, header, bytes) == nullptr) == same);
    const KvPart other{.id = {{header.block.lo ^ 1, header.block.hi}, kind}, .before = header.before};
    MOESAIC_CHECK(kv_file_fault(kKey, other, written, bytes) != nullptr);
  }
}

}  // namespace

// A byte with the length of a name, the name, and a file of the KV store.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t name = std::min<size_t>(data[0], size - 1);
  read_name({reinterpret_cast<const char*>(data) + 1, name});
  read_file(std::as_bytes(std::span(data, size)).subspan(1 + name));
  return 0;
}
