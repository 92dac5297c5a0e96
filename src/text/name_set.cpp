#include "text/name_set.h"

#include <algorithm>

namespace moesaic {
namespace {

uint8_t byte_at(std::string_view text, size_t i) { return static_cast<uint8_t>(text[i]); }

}  // namespace

NameSet::NameSet(std::vector<Name> names) : names_(std::move(names)) {
  // Comparing string_views compares bytes as unsigned: a name stands right before those that it begins.
  std::stable_sort(names_.begin(), names_.end(),
                   [](const Name& a, const Name& b) { return a.text < b.text; });
  const auto same = [](const Name& a, const Name& b) { return a.text == b.text; };
  names_.erase(std::unique(names_.begin(), names_.end(), same), names_.end());
  for (const Name& name : names_) ++begins_[byte_at(name.text, 0) + size_t{1}];
  for (size_t b = 1; b < begins_.size(); ++b) begins_[b] += begins_[b - 1];
}

// The longest name that begins the text: [low, high) are those whose first `length` bytes are the text's.
const NameSet::Name* NameSet::longest(std::string_view text) const {
  const Name *low = names_.data() + begins_[byte_at(text, 0)],
             *high = names_.data() + begins_[byte_at(text, 0) + size_t{1}], *found = nullptr;
  for (size_t length = 1; low != high; ++length) {
    if (low->text.size() == length) found = low++;
    if (length == text.size()) break;
    const uint8_t byte = byte_at(text, length);
    low = std::partition_point(low, high, [&](const Name& n) { return byte_at(n.text, length) < byte; });
    high = std::partition_point(low, high, [&](const Name& n) { return byte_at(n.text, length) == byte; });
  }
  return found;
}

std::optional<NameSet::Match> NameSet::find(std::string_view text, size_t from) const {
  for (size_t at = from; at < text.size() && !names_.empty(); ++at) {
    const uint8_t first = byte_at(text, at);
    if (begins_[first] == begins_[first + size_t{1}]) continue;
    if (const Name* name = longest(text.substr(at))) return Match{at, name->text.size(), name->id};
  }
  return std::nullopt;
}

}  // namespace moesaic
