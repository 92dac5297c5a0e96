// The parts that a folder has, a file each (docs/design/kv-store.md). They are still there after a restart.
//
// A file, little-endian:
//   0  char[8] "MOESAICP"    8 u32 version, 1     12 u32 kind, as KvKind
//   16 u64[2] the block      32 u64[2] the block before it
//   48 u64 bytes behind the header
//   56 u64[2] SipHash with the folder's key of the 56 bytes before this and of all behind it
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/private_folder.h"
#include "engine/kv_tier.h"

namespace moesaic {

struct KvFileHeader {
  std::array<char, 8> magic{'M', 'O', 'E', 'S', 'A', 'I', 'C', 'P'};
  uint32_t version = 1, kind = 0;
  Hash128 block, before;
  uint64_t bytes = 0;
  Hash128 checksum;
};
static_assert(sizeof(KvFileHeader) == 72);

KvFileHeader kv_file_header(const HashKey& key, const KvPart& part, std::span<const std::byte> bytes);
// Says what is wrong with a file that should hold the part; null: nothing.
const char* kv_file_fault(const HashKey& key, const KvPart& part, const KvFileHeader& header,
                          std::span<const std::byte> bytes);
std::string kv_file_name(const KvPart& part);
// Returns nothing for a name that kv_file_name() does not give.
std::optional<KvPart> kv_part_of(std::string_view file_name);

class DiskTier final : public IndexedTier {
 public:
  // Makes the folder if the one above it is there. It is an error if it is not this user's alone, or another
  // process has it. most_bytes 0: half of what is free and of what the parts take now. No part goes before
  // trim() or put(): who opens it may fail yet.
  static Result<std::unique_ptr<DiskTier>> open(const std::string& folder, uint64_t most_bytes);

  const HashKey& key() const { return folder_.key(); }
  void trim() override { make_room(0); }
  void touch(const KvPart& part) override;
  bool put(const KvPart& part, std::span<const std::byte> bytes) override;
  std::shared_ptr<const KvBytes> get(const KvPart& part, size_t bytes) override;

 private:
  explicit DiskTier(PrivateFolder folder) : IndexedTier(UINT64_MAX), folder_(std::move(folder)) {}
  Status read_names();
  Status bound(uint64_t most_bytes);
  bool make_room(uint64_t bytes, const KvPartId& kept = {}, uint64_t most = UINT64_MAX);
  void lose(const KvPart& part, const char* why);

  PrivateFolder folder_;
  std::chrono::steady_clock::time_point write_again_;  // after an error; for the thread that puts
};

}  // namespace moesaic
