#include "engine/kv_index.h"

#include <algorithm>

#include "base/error.h"

namespace moesaic {

std::vector<KvPart> KvIndex::make_room(uint64_t bytes, const KvPartId& kept, uint64_t most) {
  std::vector<KvPart> gone;
  while (!fits(bytes) || bytes_ + bytes > most) {
    const auto leaf = std::ranges::find_if(leaves_, [&](const Leaf& l) { return l.second != kept; });
    if (leaf == leaves_.end()) break;
    gone.push_back(parts_.at(leaf->second).part);
    erase(gone.back().id);
  }
  return gone;
}

void KvIndex::add(const KvPart& part, uint64_t bytes) {
  const Entry entry{.part = part, .bytes = bytes, .used = ++now_};
  MOESAIC_CHECK(parts_.emplace(part.id, entry).second);
  bytes_ += bytes;
  if (is_leaf(part.id)) leaves_.insert(leaf_of(entry));
  const KvPartId parent = part.parent();
  const auto of = parts_.find(parent);
  if (of != parts_.end()) leaves_.erase(leaf_of(of->second));
  ++children_[parent];
}

void KvIndex::touch(const KvPartId& id) {
  const auto at = parts_.find(id);
  if (at == parts_.end()) return;
  const bool leaf = leaves_.erase(leaf_of(at->second)) > 0;
  at->second.used = ++now_;
  if (leaf) leaves_.insert(leaf_of(at->second));
}

// A parent counts as used when its child was.
void KvIndex::erase(const KvPartId& id) {
  const auto at = parts_.find(id);
  if (at == parts_.end()) return;
  const Entry entry = at->second;
  leaves_.erase(leaf_of(entry));
  parts_.erase(at);
  bytes_ -= entry.bytes;
  const KvPartId parent = entry.part.parent();
  const auto siblings = children_.find(parent);
  if (--siblings->second > 0) return;
  children_.erase(siblings);
  const auto of = parts_.find(parent);
  if (of == parts_.end()) return;
  of->second.used = std::max(of->second.used, entry.used);
  leaves_.insert(leaf_of(of->second));
}

void KvIndex::check() const {
  uint64_t bytes = 0;
  std::unordered_map<KvPartId, int> children;
  for (const auto& [id, entry] : parts_) {
    MOESAIC_CHECK(id == entry.part.id && entry.used <= now_);
    bytes += entry.bytes;
    ++children[entry.part.parent()];
    MOESAIC_CHECK(leaves_.contains(leaf_of(entry)) == is_leaf(id));
  }
  MOESAIC_CHECK(bytes == bytes_ && children == children_);
  MOESAIC_CHECK(std::ranges::all_of(leaves_, [&](const Leaf& l) { return has(l.second); }));
}

}  // namespace moesaic
