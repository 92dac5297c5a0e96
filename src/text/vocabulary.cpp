#include "text/vocabulary.h"

#include <algorithm>
#include <functional>

#include "base/error.h"

namespace moesaic {

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

Status Vocabulary::add_special(int32_t id, std::string_view name) {
  if (name.empty() || name.size() > kMaxSpecialBytes)
    return invalid("special token {} has a name of {} bytes: 1 to {} are allowed", id, name.size(),
                   kMaxSpecialBytes);
  if (const auto old = ids_.find(bytes(id)); old != ids_.end() && old->second == id) ids_.erase(old);
  RETURN_IF_ERROR(set(id, name, true));
  special_ids_.emplace(bytes(id), id);
  special_first_byte_[static_cast<uint8_t>(name[0])] = true;
  const auto at =
      std::lower_bound(special_lengths_.begin(), special_lengths_.end(), name.size(), std::greater<>());
  if (at == special_lengths_.end() || *at != name.size()) special_lengths_.insert(at, name.size());
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

std::optional<Vocabulary::SpecialMatch> Vocabulary::find_special(std::string_view text, size_t from) const {
  for (size_t at = from; at < text.size(); ++at) {
    if (!special_first_byte_[static_cast<uint8_t>(text[at])]) continue;
    for (const size_t length : special_lengths_) {
      if (length > text.size() - at) continue;
      if (const auto id = special_id(text.substr(at, length))) return SpecialMatch{at, length, *id};
    }
  }
  return std::nullopt;
}

}  // namespace moesaic
