#include "openai/response_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

namespace moesaic::openai {
Status ResponseStore::keep_in(std::unique_ptr<ResponseFolder> folder) {
  const std::lock_guard lock(mutex_);
  folder_ = std::move(folder);
  key_ = folder_->key();
  return folder_->read_all(most_bytes_, [&](const std::string& id, StoredResponse stored) {
    if (!insert(id, std::make_shared<const StoredResponse>(std::move(stored)))) folder_->remove(id);
  });
}

std::string ResponseStore::digest(const std::string& owner) const {
  const Hash128 hash = SipHash(key_).add(std::as_bytes(std::span(owner))).finish();
  return fmt::format("{:016x}{:016x}", hash.hi, hash.lo);
}

void ResponseStore::forget(Entries::iterator entry) {
  if (folder_ != nullptr) folder_->remove(entry->id);
  const auto at = shares_.find(entry->stored->holder);
  bytes_ -= entry->bytes();
  at->second.bytes -= entry->bytes();
  by_id_.erase(entry->id);
  for (const StoredItem& item : entry->stored->outputs) {
    const auto place = by_item_.find(item.id);
    if (place != by_item_.end() && place->second.entry == entry) by_item_.erase(place);
  }
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

bool ResponseStore::insert(const std::string& id, const std::shared_ptr<const StoredResponse>& stored) {
  Entry entry{.id = id, .stored = stored};
  const size_t bytes = entry.bytes();
  if (most_ == 0 || bytes > largest() || by_id_.contains(id)) return false;
  Share& share = shares_[stored->holder];
  const auto at = share.entries.insert(share.entries.end(), std::move(entry));
  by_id_.emplace(id, at);
  for (size_t i = 0; i < stored->outputs.size(); ++i) by_item_.emplace(stored->outputs[i].id, Place{at, i});
  share.bytes += bytes;
  bytes_ += bytes;
  while (by_id_.size() > most_ || bytes_ > most_bytes_) forget_one();
  return true;
}

void ResponseStore::keep(const std::string& id, StoredResponse stored) {
  const std::lock_guard lock(mutex_);
  stored.owner = digest(stored.owner);
  const auto kept = std::make_shared<const StoredResponse>(std::move(stored));
  if (insert(id, kept) && by_id_.contains(id) && folder_ != nullptr) folder_->write(id, kept);
}

std::shared_ptr<const StoredResponse> ResponseStore::find(const std::string& id,
                                                          const std::string& owner) const {
  const std::lock_guard lock(mutex_);
  const auto at = by_id_.find(id);
  if (at == by_id_.end() || at->second->stored->owner != digest(owner)) return {};
  return at->second->stored;
}

std::optional<FoundItem> ResponseStore::find_item(const std::string& item, const std::string& owner) const {
  const std::lock_guard lock(mutex_);
  const auto at = by_item_.find(item);
  if (at == by_item_.end()) return {};
  const auto& stored = at->second.entry->stored;
  if (stored->owner != digest(owner)) return {};
  const StoredItem& output = stored->outputs[at->second.output];
  return FoundItem{.of = stored, .json = std::string_view(stored->items).substr(output.begin, output.size)};
}

bool ResponseStore::erase(const std::string& id, const std::string& owner) {
  const std::lock_guard lock(mutex_);
  const auto at = by_id_.find(id);
  if (at == by_id_.end() || at->second->stored->owner != digest(owner)) return false;
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
