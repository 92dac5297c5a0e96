#include <new>
#include <utility>

#include "engine/kv_tier.h"

namespace moesaic {

// The copy is made before the lock is taken: the engine asks meanwhile what is there.
bool HostTier::put(const KvPart& part, std::span<const std::byte> bytes) try {
  if (has(part.id)) return true;
  if (!takes(part)) return false;
  auto copy = std::make_shared<const KvBytes>(bytes.begin(), bytes.end());
  const std::lock_guard lock(mutex_);
  for (const KvPart& gone : index_.make_room(bytes.size(), part.parent())) bytes_.erase(gone.id);
  if (!index_.fits(bytes.size())) return false;
  bytes_[part.id] = std::move(copy);
  index_.add(part, bytes.size());
  counted_.written_bytes += bytes.size();
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

std::shared_ptr<const KvBytes> HostTier::get(const KvPart& part, size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto at = bytes_.find(part.id);
  if (at == bytes_.end() || at->second->size() != bytes) return nullptr;
  index_.touch(part.id);
  return at->second;
}

}  // namespace moesaic
