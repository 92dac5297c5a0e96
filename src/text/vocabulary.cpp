#include "text/vocabulary.h"

#include <algorithm>

#include "base/error.h"

namespace moesaic {

bool is_harmony_name(std::string_view name) {
  return std::ranges::any_of(kHarmonyTokens, [&](const auto& token) { return name == token.second; });
}

const char* Vocabulary::keep(std::string_view bytes) {
  constexpr size_t kBlock = 1 << 20;
  if (blocks_.empty() || blocks_.back().capacity() - blocks_.back().size() < bytes.size()) {
    blocks_.emplace_back().reserve(std::max(kBlock, bytes.size()));
  }
  std::vector<char>& block = blocks_.back();
  block.insert(block.end(), bytes.begin(), bytes.end());
  return block.data() + block.size() - bytes.size();
}

Status Vocabulary::set(int32_t id, std::string_view bytes, bool special) {
  if (id < 0 || id >= kMaxTokens)
    return invalid("token id {} is outside 0..{}: the tokenizer's file is damaged", id, kMaxTokens - 1);
  if (id >= size()) tokens_.resize(static_cast<size_t>(id) + 1);
  tokens_[id] = {keep(bytes), static_cast<uint32_t>(bytes.size()), special};
  return {};
}

Status Vocabulary::add(int32_t id, std::string_view bytes) {
  if (id >= 0 && id < size() && tokens_[id].data != nullptr)
    return invalid("token id {} stands twice in the vocabulary", id);
  RETURN_IF_ERROR(set(id, bytes, false));
  if (!bytes.empty()) ids_.emplace(this->bytes(id), id);
  return {};
}

Status Vocabulary::add_named(const AddedToken& token, std::string_view name) {
  if (name.empty() || name.size() > kMaxNameBytes)
    return invalid("added token {} has a name of {} bytes: 1 to {} are allowed", token.id, name.size(),
                   kMaxNameBytes);
  AddedToken added = token;
  if (is_harmony_name(name)) added.special = true, added.late = false;
  const auto old = ids_.find(bytes(token.id));
  const bool replaces = old != ids_.end() && old->second == token.id;
  const bool same = replaces && !added.special && old->first == name;
  if (replaces) ids_.erase(old);
  RETURN_IF_ERROR(set(token.id, name, added.special));
  if (same) ids_.emplace(bytes(token.id), token.id);
  if (added.special) special_ids_.emplace(bytes(token.id), token.id);
  added_.push_back(added);
  return {};
}

std::string_view Vocabulary::bytes(int32_t id) const {
  if (id < 0 || id >= size()) return {};
  return {tokens_[id].data, tokens_[id].length};
}

bool Vocabulary::is_special(int32_t id) const { return id >= 0 && id < size() && tokens_[id].special; }

int32_t Vocabulary::find(std::string_view bytes) const {
  const auto at = ids_.find(bytes);
  return at == ids_.end() ? -1 : at->second;
}

std::optional<int32_t> Vocabulary::special_id(std::string_view name) const {
  const auto at = special_ids_.find(name);
  if (at == special_ids_.end()) return std::nullopt;
  return at->second;
}

}  // namespace moesaic
