// The index knows which parts a tier of the KV store has, and which one is evicted first.
#pragma once

#include <cstdint>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/kv_part.h"

namespace moesaic {

// The index is bounded in bytes. A part goes before its parent; among the parts that none here builds on the
// longest unused one goes first. It is not thread-safe.
class KvIndex {
 public:
  explicit KvIndex(uint64_t most_bytes) : most_bytes_(most_bytes) {}

  bool has(const KvPartId& id) const { return parts_.contains(id); }
  size_t size() const { return parts_.size(); }
  uint64_t bytes() const { return bytes_; }
  void set_most_bytes(uint64_t most) { most_bytes_ = most; }

  // True if the part would be found: its parent is here, or it has none.
  bool takes(const KvPart& part) const { return part.parent() == KvPartId() || has(part.parent()); }
  // Takes parts out until there is room for so many bytes below the bound and below `most`, or none is left
  // but `kept`, the parent of what is to come.
  std::vector<KvPart> make_room(uint64_t bytes, const KvPartId& kept = {}, uint64_t most = UINT64_MAX);
  bool fits(uint64_t bytes) const { return bytes_ + bytes <= most_bytes_; }
  // Adds a part that is not there, as the one that was used last.
  void add(const KvPart& part, uint64_t bytes);
  // The part counts as used now. A part that is not there is ignored.
  void touch(const KvPartId& id);
  void erase(const KvPartId& id);
  // Aborts unless all counts are right. For tests.
  void check() const;

 private:
  struct Entry {
    KvPart part;
    uint64_t bytes = 0, used = 0;
  };
  using Leaf = std::pair<uint64_t, KvPartId>;

  Leaf leaf_of(const Entry& e) const { return {e.used, e.part.id}; }
  bool is_leaf(const KvPartId& id) const { return !children_.contains(id); }

  uint64_t most_bytes_, bytes_ = 0, now_ = 0;
  std::unordered_map<KvPartId, Entry> parts_;
  std::unordered_map<KvPartId, int> children_;  // by part, which need not be here; none is 0
  std::set<Leaf> leaves_;                       // parts without children, the longest unused first
};

}  // namespace moesaic
