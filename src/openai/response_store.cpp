#include "openai/response_store.h"

#include <utility>

namespace moesaic::openai {
namespace {

constexpr size_t kLeastKept = 16;  // responses that there is room for, however large

}  // namespace

void ResponseStore::forget(Entries::iterator entry) {
  bytes_ -= entry->bytes();
  by_id_.erase(entry->id);
  entries_.erase(entry);
}

void ResponseStore::keep(const std::string& id, StoredResponse stored) {
  Entry entry{.id = id, .stored = std::move(stored)};
  const size_t bytes = entry.bytes();
  const std::lock_guard lock(mutex_);
  if (most_ == 0 || bytes > most_bytes_ / kLeastKept || by_id_.contains(id)) return;
  while (!entries_.empty() && (entries_.size() >= most_ || bytes_ + bytes > most_bytes_))
    forget(entries_.begin());
  by_id_.emplace(id, entries_.insert(entries_.end(), std::move(entry)));
  bytes_ += bytes;
}

std::optional<StoredResponse> ResponseStore::find(const std::string& id, const std::string& owner) const {
  const std::lock_guard lock(mutex_);
  const auto at = by_id_.find(id);
  if (at == by_id_.end() || at->second->stored.owner != owner) return {};
  return at->second->stored;
}

bool ResponseStore::erase(const std::string& id, const std::string& owner) {
  const std::lock_guard lock(mutex_);
  const auto at = by_id_.find(id);
  if (at == by_id_.end() || at->second->stored.owner != owner) return false;
  forget(at->second);
  return true;
}

size_t ResponseStore::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

size_t ResponseStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace moesaic::openai
