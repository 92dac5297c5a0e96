#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "base/error.h"

namespace moesaic {
namespace {

// Up to here a scan for the lowest rank beats a heap.
constexpr size_t kShortPiece = 64;
// Longer pieces are encoded by windows of so many bytes, which stay in the second-level cache.
constexpr size_t kWindow = 16 << 10;
constexpr size_t kProvisionalTokens = 16;

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// False where an added token has another name than its place in the vocabulary, or is special: no text is
// joined to it, or out of it.
bool joins_text(const Vocabulary& vocabulary, const Bpe::Merge& merge) {
  const std::string_view left = vocabulary.bytes(merge.left), right = vocabulary.bytes(merge.right),
                         joined = vocabulary.bytes(merge.joined);
  return !vocabulary.is_special(merge.joined) && joined.size() == left.size() + right.size() &&
         joined.starts_with(left) && joined.ends_with(right);
}

}  // namespace

Status Bpe::set_bytes(const Vocabulary& vocabulary) {
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    byte_tokens_[byte] = vocabulary.find({&c, 1});
    if (byte_tokens_[byte] < 0)
      return invalid("byte 0x{:02x} has no token: only byte-level vocabularies are supported", byte);
  }
  lengths_.resize(vocabulary.size());
  for (int32_t id = 0; id < vocabulary.size(); ++id)
    lengths_[id] = static_cast<uint32_t>(vocabulary.bytes(id).size());
  return {};
}

void Bpe::reserve(size_t pairs) { slots_.assign(std::bit_ceil(2 * pairs + 2), {}); }

size_t Bpe::slot_of(uint64_t key) const {
  const size_t mask = slots_.size() - 1;
  const uint64_t mixed = (key ^ key >> 29) * 0x9E3779B97F4A7C15;
  size_t slot = (mixed >> 20) & mask;
  while (slots_[slot].key != key && slots_[slot].key != kEmpty) slot = (slot + 1) & mask;
  return slot;
}

void Bpe::insert(int32_t left, int32_t right, Joined joined) {
  const uint64_t key = pair_key(left, right);
  Slot& slot = slots_[slot_of(key)];
  if (slot.key == kEmpty) slot = {key, joined};
}

Bpe::Joined Bpe::find(int32_t left, int32_t right) const {
  return slots_[slot_of(pair_key(left, right))].joined;
}

Result<Bpe> Bpe::from_merges(const Vocabulary& vocabulary, const std::vector<Merge>& merges) {
  Bpe bpe;
  RETURN_IF_ERROR(bpe.set_bytes(vocabulary));
  bpe.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    if (!joins_text(vocabulary, merges[rank])) continue;
    bpe.insert(merges[rank].left, merges[rank].right, {static_cast<uint32_t>(rank), merges[rank].joined});
  }
  return bpe;
}

Result<Bpe> Bpe::from_ranks(const Vocabulary& vocabulary) {
  Bpe bpe;
  RETURN_IF_ERROR(bpe.set_bytes(vocabulary));
  std::vector<Merge> merges;
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    const std::string_view bytes = vocabulary.bytes(id);
    if (vocabulary.is_special(id)) continue;
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const int32_t left = vocabulary.find(bytes.substr(0, cut));
      const int32_t right = left < 0 ? -1 : vocabulary.find(bytes.substr(cut));
      if (right >= 0) merges.push_back({left, right, id});
    }
  }
  bpe.reserve(merges.size());
  for (const Merge& merge : merges)
    bpe.insert(merge.left, merge.right, {static_cast<uint32_t>(merge.joined), merge.joined});
  return bpe;
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& tokens, const TokenLimit& limit) const {
  if (piece.size() <= kShortPiece) {
    encode_short(piece, tokens);
  } else if (piece.size() <= kWindow) {
    Scratch scratch;
    encode_long(piece, scratch, tokens);
  } else {
    encode_windows(piece, tokens, limit);
  }
}

void Bpe::encode_short(std::string_view piece, std::vector<int32_t>& tokens) const {
  int32_t ids[kShortPiece];
  Joined next[kShortPiece + 1];  // next[i] joins ids[i] and ids[i + 1]; the last stays without a rank
  size_t count = piece.size();
  for (size_t i = 0; i < count; ++i) ids[i] = byte_tokens_[static_cast<uint8_t>(piece[i])];
  for (size_t i = 0; i + 1 < count; ++i) next[i] = find(ids[i], ids[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i)
      if (next[i].rank < next[best].rank) best = i;
    if (next[best].rank == kNoRank) break;
    ids[best] = next[best].id;
    std::copy(ids + best + 2, ids + count, ids + best + 1);
    std::copy(next + best + 2, next + count, next + best + 1);
    --count;
    next[best] = best + 1 < count ? find(ids[best], ids[best + 1]) : Joined{};
    if (best > 0) next[best - 1] = find(ids[best - 1], ids[best]);
  }
  tokens.insert(tokens.end(), ids, ids + count);
}

// A doubly linked list of symbols in place of the array and a heap in place of the scan. A heap entry whose
// rank is no longer its symbol's is stale.
void Bpe::encode_long(std::string_view piece, Scratch& scratch, std::vector<int32_t>& tokens) const {
  const auto count = static_cast<int32_t>(piece.size());
  std::vector<Symbol>& symbols = scratch.symbols;
  std::vector<uint64_t>& heap = scratch.heap;
  symbols.resize(piece.size());
  heap.clear();
  for (int32_t i = 0; i < count; ++i)
    symbols[i] = {byte_tokens_[static_cast<uint8_t>(piece[i])], i - 1, i + 1 < count ? i + 1 : -1, {}};
  const auto join = [&](int32_t at) {
    Symbol& symbol = symbols[at];
    symbol.joined = symbol.next < 0 ? Joined{} : find(symbol.id, symbols[symbol.next].id);
    if (symbol.joined.rank == kNoRank) return false;
    heap.push_back(uint64_t{symbol.joined.rank} << 32 | static_cast<uint32_t>(at));
    return true;
  };
  const auto refresh = [&](int32_t at) {
    if (join(at)) std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  for (int32_t i = 0; i + 1 < count; ++i) join(i);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto rank = static_cast<uint32_t>(heap.back() >> 32);
    const auto at = static_cast<int32_t>(heap.back());
    heap.pop_back();
    Symbol& symbol = symbols[at];
    if (symbol.joined.rank != rank) continue;
    Symbol& right = symbols[symbol.next];
    symbol.id = symbol.joined.id;
    symbol.next = right.next;
    right.joined = {};
    if (symbol.next >= 0) symbols[symbol.next].previous = at;
    refresh(at);
    if (symbol.previous >= 0) refresh(symbol.previous);
  }
  for (int32_t at = 0; at >= 0; at = symbols[at].next) tokens.push_back(symbols[at].id);
}

// True if a text's tokens may be `left` and `right` in a row: then the two are the tokens of their own bytes.
bool Bpe::may_follow(int32_t right, int32_t left, std::string_view both) const {
  std::vector<int32_t> tokens;
  Scratch scratch;
  encode_long(both, scratch, tokens);
  return tokens == std::vector<int32_t>{left, right};
}

// Tokens of which each pair of neighbours is the encoding of its own bytes are the encoding of all of them:
// the first join across a boundary would be one in the pair's own encoding too. So the text is encoded a
// window at a time. A window's last tokens are left to the next window, since what follows may change them;
// if that was too few, more of what was taken as final is encoded again.
void Bpe::encode_windows(std::string_view piece, std::vector<int32_t>& tokens,
                         const TokenLimit& limit) const {
  const size_t first = tokens.size();
  Scratch scratch;
  std::vector<int32_t> window;
  size_t provisional = kProvisionalTokens, begin = 0, end = std::min(kWindow, piece.size());
  while (!limit.reached(tokens.size())) {
    window.clear();
    encode_long(piece.substr(begin, end - begin), scratch, window);
    if (tokens.size() > first) {
      const size_t left = lengths_[tokens.back()], right = lengths_[window.front()];
      if (!may_follow(window.front(), tokens.back(), piece.substr(begin - left, left + right))) {
        for (size_t i = 0; i < provisional && tokens.size() > first; ++i) {
          begin -= lengths_[tokens.back()];
          tokens.pop_back();
        }
        provisional *= 2;
        continue;
      }
    }
    const bool last = end == piece.size();
    const size_t final_tokens = last ? window.size() : window.size() - std::min(window.size(), provisional);
    tokens.insert(tokens.end(), window.begin(), window.begin() + static_cast<std::ptrdiff_t>(final_tokens));
    if (last) return;
    for (size_t i = 0; i < final_tokens; ++i) begin += lengths_[window[i]];
    end = std::min(piece.size(), end + std::max(kWindow, end - begin));
  }
}

}  // namespace moesaic
