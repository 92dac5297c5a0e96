#include "openai/response_store.h"

#include <algorithm>
#include <utility>

namespace moesaic::openai {
namespace {

constexpr size_t kLeastKept = 16;  // responses that there is room for, however large

}  // namespace

void ResponseStore::forget(Entries::iterator entry) {
  const auto at = shares_.find(entry->stored->holder);
  bytes_ -= entry->bytes();
  at->second.bytes -= entry->bytes();
  by_id_.erase(entry->id);
  at->second.entries.erase(entry);
  if (at->second.entries.empty()) shares_.erase(at);
}

// The oldest of the share with the most bytes, or, where all have few, with the most responses.
void ResponseStore::forget_one() {
  const bool by_bytes = bytes_ > most_bytes_;
  const auto size = [&](const auto& of) { return by_bytes ? of.second.bytes : of.second.entries.size(); };
  const auto largest = std::max_element(shares_.begin(), shares_.end(),
                                        [&](const auto& a, const auto& b) { return size(a) < size(b); });
  forget(largest->second.entries.begin());
}

void ResponseStore::keep(const std::string& id, StoredResponse stored) {
  Entry entry{.id = id, .stored = std::make_shared<const StoredResponse>(std::move(stored))};
  const size_t bytes = entry.bytes();
  const std::lock_guard lock(mutex_);
  if (most_ == 0 || bytes > most_bytes_ / kLeastKept || by_id_.contains(id)) return;
  Share& share = shares_[entry.stored->holder];
  by_id_.emplace(id, share.entries.insert(share.entries.end(), std::move(entry)));
  share.bytes += bytes;
  bytes_ += bytes;
  while (by_id_.size() > most_ || bytes_ > most_bytes_) forget_one();
}

std::shared_ptr<const StoredResponse> ResponseStore::find(const std::string& id,
                                                          const std::string& owner) const {
  const std::lock_guard lock(mutex_);
  const auto at = by_id_.find(id);
  if (at == by_id_.end() || at->second->stored->owner != owner) return {};
  return at->second->stored;
}

bool ResponseStore::erase(const std::string& id, const std::string& owner) {
  const std::lock_guard lock(mutex_);
  const auto at = by_id_.find(id);
  if (at == by_id_.end() || at->second->stored->owner != owner) return false;
  forget(at->second);
  return true;
}

size_t ResponseStore::size() const {
  const std::lock_guard lock(mutex_);
  return by_id_.size();
}

size_t ResponseStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace moesaic::openai
