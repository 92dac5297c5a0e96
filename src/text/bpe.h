// Byte-pair encoding of one piece of text: starting from single bytes, the adjacent pair with the lowest rank
// is joined, the leftmost first among equals, until no pair has a rank.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "moesaic/status.h"
#include "text/vocabulary.h"

namespace moesaic {

class Bpe {
 public:
  struct Merge {
    int32_t left, right, joined;  // token ids
  };

  // merges stand in the order of their rank. Fails where one of the 256 single bytes has no token.
  static Result<Bpe> from_merges(const Vocabulary& vocabulary, const std::vector<Merge>& merges);
  // Every token's id is the rank of joining any two tokens that make up its bytes (tiktoken's rule).
  static Result<Bpe> from_ranks(const Vocabulary& vocabulary);

  // Appends the tokens of piece (fewer than 2^31 bytes). O(n log n). Thread-safe.
  void encode(std::string_view piece, std::vector<int32_t>& tokens) const;

 private:
  struct Joined {
    uint32_t rank = kNoRank;
    int32_t id = -1;
  };
  struct Slot {
    uint64_t key = kEmpty;
    Joined joined;
  };
  static constexpr uint32_t kNoRank = UINT32_MAX;
  static constexpr uint64_t kEmpty = UINT64_MAX;  // no pair: ids are not negative

  Status set_bytes(const Vocabulary& vocabulary);
  void reserve(size_t pairs);
  void insert(int32_t left, int32_t right, Joined joined);
  size_t slot_of(uint64_t key) const;
  Joined find(int32_t left, int32_t right) const;
  void encode_short(std::string_view piece, std::vector<int32_t>& tokens) const;
  void encode_long(std::string_view piece, std::vector<int32_t>& tokens) const;

  int32_t byte_tokens_[256] = {};
  std::vector<Slot> slots_;  // open addressing, a power of two, at most half full
};

}  // namespace moesaic
