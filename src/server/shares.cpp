#include "server/shares.h"

namespace moesaic::server {

bool Shares::take(const std::string& client, size_t amount, size_t times) {
  const std::lock_guard lock(mutex_);
  const auto at = held_.find(client);
  const size_t held = at == held_.end() ? 0 : at->second;
  if (amount > limit_ - in_use_) return false;
  const size_t free = limit_ - in_use_ - amount;
  const bool only_one = held == 0 && amount == 1;
  if (!only_one && (held + amount) / times > free) return false;
  in_use_ += amount;
  if (amount > 0) held_[client] = held + amount;
  return true;
}

void Shares::give_back(const std::string& client, size_t amount) {
  const std::lock_guard lock(mutex_);
  const auto at = held_.find(client);
  if (at == held_.end()) return;
  in_use_ -= amount;
  if ((at->second -= amount) == 0) held_.erase(at);
}

size_t Shares::in_use() const {
  const std::lock_guard lock(mutex_);
  return in_use_;
}

}  // namespace moesaic::server
