// The tokens of a byte-level vocabulary: their bytes by id, their ids by bytes, and which of them are
// special.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "moesaic/status.h"

namespace moesaic {

class Vocabulary {
 public:
  // Far above the 201,088 of o200k_harmony: ids from a file size tables, so they are bounded.
  static constexpr int32_t kMaxTokens = 1 << 22;
  static constexpr size_t kMaxSpecialBytes = 256;

  Vocabulary() = default;
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  // Ids may come in any order and leave gaps; a gap is a token of no bytes. Of two tokens with the same bytes
  // the first is the one that text encodes to.
  Status add(int32_t id, std::string_view bytes);
  // A special token's bytes are its name; it is found only by find_special. Replaces an ordinary token of
  // that id.
  Status add_special(int32_t id, std::string_view name);

  int size() const { return static_cast<int>(tokens_.size()); }
  // Empty for ids out of range.
  std::string_view bytes(int32_t id) const;
  bool is_special(int32_t id) const;
  // -1 where no ordinary token has these bytes.
  int32_t find(std::string_view bytes) const;
  std::optional<int32_t> special_id(std::string_view name) const;

  struct SpecialMatch {
    size_t position, length;
    int32_t id;
  };
  // The first special token's name in text from a position on, the longest of those that begin there.
  std::optional<SpecialMatch> find_special(std::string_view text, size_t from) const;

 private:
  struct Token {
    const char* data = nullptr;
    uint32_t length = 0;
    bool special = false;
  };
  Status set(int32_t id, std::string_view bytes, bool special);
  const char* keep(std::string_view bytes);

  std::vector<Token> tokens_;              // [size]
  std::vector<std::vector<char>> blocks_;  // the bytes; a block never grows past its capacity
  std::unordered_map<std::string_view, int32_t> ids_, special_ids_;
  std::vector<size_t> special_lengths_;  // distinct, longest first
  bool special_first_byte_[256] = {};
};

}  // namespace moesaic
