#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <queue>

#include "base/error.h"

namespace moesaic {
namespace {

// Up to here a scan for the lowest rank beats a heap.
constexpr size_t kShortPiece = 64;

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

Status Bpe::set_bytes(const Vocabulary& vocabulary) {
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    byte_tokens_[byte] = vocabulary.find({&c, 1});
    if (byte_tokens_[byte] < 0)
      return invalid("byte 0x{:02x} has no token: only byte-level vocabularies are supported", byte);
  }
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

void Bpe::encode(std::string_view piece, std::vector<int32_t>& tokens) const {
  if (piece.size() <= kShortPiece) {
    encode_short(piece, tokens);
  } else {
    encode_long(piece, tokens);
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
void Bpe::encode_long(std::string_view piece, std::vector<int32_t>& tokens) const {
  struct Symbol {
    int32_t id, previous, next;
    Joined joined;  // with the next symbol
  };
  const auto count = static_cast<int32_t>(piece.size());
  std::vector<Symbol> symbols(piece.size());
  std::vector<uint64_t> entries;  // rank in the upper half, position in the lower
  entries.reserve(piece.size());
  for (int32_t i = 0; i < count; ++i)
    symbols[i] = {byte_tokens_[static_cast<uint8_t>(piece[i])], i - 1, i + 1 < count ? i + 1 : -1, {}};
  for (int32_t i = 0; i + 1 < count; ++i) {
    symbols[i].joined = find(symbols[i].id, symbols[i + 1].id);
    if (symbols[i].joined.rank != kNoRank) entries.push_back(uint64_t{symbols[i].joined.rank} << 32 | i);
  }
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> heap({}, std::move(entries));
  const auto refresh = [&](int32_t at) {
    Symbol& symbol = symbols[at];
    symbol.joined = symbol.next < 0 ? Joined{} : find(symbol.id, symbols[symbol.next].id);
    if (symbol.joined.rank != kNoRank) heap.push(uint64_t{symbol.joined.rank} << 32 | at);
  };
  while (!heap.empty()) {
    const auto rank = static_cast<uint32_t>(heap.top() >> 32);
    const auto at = static_cast<int32_t>(heap.top());
    heap.pop();
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

}  // namespace moesaic
