// The KV store keeps parts of blocks, under names that are the same in every process with the same key
// (docs/design/kv-store.md).
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "base/siphash.h"

namespace moesaic {

using KvBytes = std::vector<std::byte>;

// A block's page in all full-attention layers, or in all sliding ones.
enum class KvKind : uint8_t { kFull, kWindow };

struct KvPartId {
  Hash128 block;
  KvKind kind = KvKind::kFull;
  // NOLINTNEXTLINE(modernize-use-nullptr)
  auto operator<=>(const KvPartId&) const = default;
};

// A part is worth nothing without its parent: the full part of the block before it, or of its own block. The
// parent of a first block is no part; its hash is zero.
struct KvPart {
  KvPartId id;
  Hash128 before;  // the block before it
  KvPartId parent() const { return id.kind == KvKind::kWindow ? KvPartId{id.block} : KvPartId{before}; }
};

// Names blocks.
class KvNames {
 public:
  explicit KvNames(const HashKey& key = random_hash_key(), std::string_view model = {})
      : key_(key), model_(SipHash(key).add(std::as_bytes(std::span(model))).finish()) {}

  // The hash that the first block of a sequence has as its predecessor's.
  Hash128 root(std::string_view salt) const {
    return SipHash(key_).add_value(model_).add(std::as_bytes(std::span(salt))).finish();
  }
  Hash128 next(const Hash128& before, std::span<const int32_t> tokens) const {
    return SipHash(key_).add_value(before).add(std::as_bytes(tokens)).finish();
  }

 private:
  HashKey key_;
  Hash128 model_;
};

}  // namespace moesaic

template <>
struct std::hash<moesaic::KvPartId> {
  size_t operator()(const moesaic::KvPartId& id) const noexcept {
    return static_cast<size_t>(id.block.lo) ^ static_cast<size_t>(id.kind);
  }
};
