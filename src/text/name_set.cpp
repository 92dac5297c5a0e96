#include "text/name_set.h"

#include <algorithm>

namespace moesaic {
namespace {

uint8_t byte_at(std::string_view text, size_t i) { return static_cast<uint8_t>(text[i]); }

}  // namespace

NameSet::NameSet(std::vector<Name> names) : names_(std::move(names)) {
  // Comparing string_views compares bytes as unsigned: a name stands right before those that it begins.
  std::ranges::stable_sort(names_, {}, &Name::text);
  const auto equal = std::ranges::unique(names_, {}, &Name::text);
  names_.erase(equal.begin(), equal.end());
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
    const auto byte = [length](const Name& name) { return byte_at(name.text, length); };
    const auto same = std::ranges::equal_range(low, high, byte_at(text, length), {}, byte);
    low = same.begin(), high = same.end();
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
