// Names that are found in text before anything else is done with it, as added tokens are.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace moesaic {

// Immutable once made: may be used from several threads.
class NameSet {
 public:
  struct Name {
    std::string_view text;  // not empty; its bytes must outlive the set
    int32_t id;
  };
  struct Match {
    size_t position, length;
    int32_t id;
  };

  NameSet() = default;
  // The first of equal names counts.
  explicit NameSet(std::vector<Name> names);

  // The first name in text from a position on, the longest of those that begin there: the rule of
  // huggingface/tokenizers. Takes at most as many steps for a byte as the longest name has.
  std::optional<Match> find(std::string_view text, size_t from) const;

 private:
  const Name* longest(std::string_view text) const;

  std::vector<Name> names_;                // in the order of their bytes
  std::array<uint32_t, 257> begins_ = {};  // names that begin with byte b: [begins_[b], begins_[b + 1])
};

}  // namespace moesaic
