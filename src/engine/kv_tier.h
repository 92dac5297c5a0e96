// One of the places where the KV store keeps parts: host memory or a folder.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>

#include "engine/kv_index.h"
#include "engine/kv_part.h"
#include "moesaic/stats.h"
#include "moesaic/status.h"

namespace moesaic {

// A tier is thread-safe; one thread puts and touches.
class KvTier {
 public:
  virtual ~KvTier() = default;
  // Evicts what is over the bound. A store calls it once, when it begins to use the tier.
  virtual void trim() {}
  // Never waits for a disk.
  virtual bool has(const KvPartId& id) const = 0;
  // The part counts as used now.
  virtual void touch(const KvPart& part) = 0;
  // False: the part is not kept, for lack of room or by an error. A part that is there already is ignored.
  virtual bool put(const KvPart& part, std::span<const std::byte> bytes) = 0;
  // Returns the bytes of a part, as many as expected; null: it is not there, or no longer.
  virtual std::shared_ptr<const KvBytes> get(const KvPart& part, size_t bytes) = 0;
  virtual KvTierStats stats() const = 0;
};

// A tier that knows from an index which parts it has.
class IndexedTier : public KvTier {
 public:
  explicit IndexedTier(uint64_t most_bytes) : index_(most_bytes) {}
  bool has(const KvPartId& id) const override {
    const std::lock_guard lock(mutex_);
    return index_.has(id);
  }
  void touch(const KvPart& part) override {
    const std::lock_guard lock(mutex_);
    index_.touch(part.id);
  }
  KvTierStats stats() const override {
    const std::lock_guard lock(mutex_);
    KvTierStats stats = counted_;
    stats.bytes = index_.bytes();
    return stats;
  }

 protected:
  bool takes(const KvPart& part) const {
    const std::lock_guard lock(mutex_);
    return index_.takes(part);
  }

  mutable std::mutex mutex_;  // guards what follows
  KvIndex index_;
  KvTierStats counted_;
};

class HostTier final : public IndexedTier {
 public:
  using IndexedTier::IndexedTier;
  bool put(const KvPart& part, std::span<const std::byte> bytes) override;
  std::shared_ptr<const KvBytes> get(const KvPart& part, size_t bytes) override;

 private:
  std::unordered_map<KvPartId, std::shared_ptr<const KvBytes>> bytes_;  // under the mutex, too
};

}  // namespace moesaic
