// Byte-pair encoding of one piece of text: starting from single bytes, the adjacent pair with the lowest rank
// is joined, the leftmost first among equals, until no pair has a rank.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "moesaic/status.h"
#include "moesaic/types.h"
#include "text/vocabulary.h"

namespace moesaic {

class Bpe {
 public:
  struct Merge {
    int32_t left, right, joined;  // token ids
  };

  // merges stand in the order of their rank; those that added tokens have made impossible are left out. Fails
  // where one of the 256 single bytes has no token.
  static Result<Bpe> from_merges(const Vocabulary& vocabulary, const std::vector<Merge>& merges);
  // Every token's id is the rank of joining any two tokens that make up its bytes (tiktoken's rule).
  static Result<Bpe> from_ranks(const Vocabulary& vocabulary);

  // Appends the tokens of piece (fewer than 2^31 bytes), or some of them once `limit` is reached. O(n log n),
  // and some megabytes of memory whatever the length. Thread-safe.
  void encode(std::string_view piece, std::vector<int32_t>& tokens, const TokenLimit& limit = {}) const;

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

  // The working memory of encode_long, kept from one call to the next.
  struct Symbol {
    int32_t id, previous, next;
    Joined joined;  // with the next symbol
  };
  struct Scratch {
    std::vector<Symbol> symbols;
    std::vector<uint64_t> heap;  // rank in the upper half, position in the lower; the least first
  };

  Status set_bytes(const Vocabulary& vocabulary);
  void reserve(size_t pairs);
  void insert(int32_t left, int32_t right, Joined joined);
  size_t slot_of(uint64_t key) const;
  Joined find(int32_t left, int32_t right) const;
  void encode_short(std::string_view piece, std::vector<int32_t>& tokens) const;
  void encode_long(std::string_view piece, Scratch& scratch, std::vector<int32_t>& tokens) const;
  void encode_windows(std::string_view piece, std::vector<int32_t>& tokens, const TokenLimit& limit) const;
  bool may_follow(int32_t right, int32_t left, std::string_view both) const;

  int32_t byte_tokens_[256] = {};
  std::vector<uint32_t> lengths_;  // bytes of each token
  std::vector<Slot> slots_;        // open addressing, a power of two, at most half full
};

}  // namespace moesaic
