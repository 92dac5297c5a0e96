#include "grammar/characters.h"

#include <algorithm>

namespace moesaic::grammar {
namespace {

constexpr uint32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;

int encode(uint32_t c, uint8_t* out) {
  if (c < 0x80) return out[0] = static_cast<uint8_t>(c), 1;
  const int length = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  for (int i = length - 1; i > 0; --i, c >>= 6) out[i] = static_cast<uint8_t>(0x80 | (c & 0x3F));
  out[0] = static_cast<uint8_t>(0xF0 << (4 - length) | c);
  return length;
}

// Adds to edges the spellings in UTF-8 of low..high, cut where their bytes are no plain product of ranges.
void add_utf8(Automaton& a, uint32_t low, uint32_t high, StateId next, std::vector<Edge>& edges) {
  const auto cut = [&](uint32_t last) {
    add_utf8(a, low, last, next, edges);
    add_utf8(a, last + 1, high, next, edges);
  };
  for (const uint32_t last : {0x7Fu, 0x7FFu, 0xFFFFu})
    if (low <= last && high > last) return cut(last);
  for (int bits = 6; high >= 0x80 && bits <= 18; bits += 6) {
    const uint32_t tail = (1u << bits) - 1;
    if ((low & ~tail) == (high & ~tail)) continue;
    if ((low & tail) != 0) return cut(low | tail);
    if ((high & tail) != tail) return cut((high & ~tail) - 1);
  }
  uint8_t from[4], to[4];
  encode(low, from);
  for (int i = encode(high, to) - 1; i > 0; --i) next = a.bytes({{from[i], to[i], next}});
  edges.push_back({from[0], to[0], next});
}

bool needs_escape(uint32_t c) { return c < 0x20 || c == '"' || c == '\\'; }

// Behind the backslash.
StateId escape_of(Automaton& a, uint32_t c, StateId next) {
  constexpr std::string_view kPlain = "\"\\\b\f\n\r\t", kNames = "\"\\bfnrt";
  const size_t at = kPlain.find(static_cast<char>(c));
  if (at != std::string_view::npos) return a.literal(kNames.substr(at, 1), next);
  const char digits[] = {'u', '0', '0', c < 0x10 ? '0' : '1', "0123456789abcdef"[c & 15]};
  return a.literal({digits, sizeof digits}, next);
}

StateId hex_digits(Automaton& a, int count, StateId next) {
  for (; count > 0; --count) next = a.bytes({{'0', '9', next}, {'A', 'F', next}, {'a', 'f', next}});
  return next;
}

// Behind \u: a character of the basic plane, or two surrogates.
StateId unicode_escape(Automaton& a, StateId next) {
  const StateId two = hex_digits(a, 2, next), three = hex_digits(a, 1, two);
  const StateId low = a.literal("\\u", a.bytes({{'D', 'D', a.bytes({{'C', 'F', two}, {'c', 'f', two}})},
                                                {'d', 'd', a.bytes({{'C', 'F', two}, {'c', 'f', two}})}}));
  const StateId high = hex_digits(a, 2, low);
  const StateId d = a.bytes({{'0', '7', two}, {'8', '9', high}, {'A', 'B', high}, {'a', 'b', high}});
  return a.bytes({{'0', '9', three},
                  {'A', 'C', three},
                  {'E', 'F', three},
                  {'a', 'c', three},
                  {'e', 'f', three},
                  {'D', 'D', d},
                  {'d', 'd', d}});
}

}  // namespace

CharSet normalized(CharSet ranges) {
  std::sort(ranges.begin(), ranges.end(), [](CharRange a, CharRange b) { return a.low < b.low; });
  CharSet merged;
  for (const CharRange r : ranges) {
    if (!merged.empty() && r.low <= merged.back().high + 1)
      merged.back().high = std::max(merged.back().high, r.high);
    else
      merged.push_back(r);
  }
  CharSet set;
  for (const CharRange r : merged) {
    if (r.low < kFirstSurrogate) set.push_back({r.low, std::min(r.high, kFirstSurrogate - 1)});
    if (r.high > kLastSurrogate) set.push_back({std::max(r.low, kLastSurrogate + 1), r.high});
  }
  return set;
}

CharSet complement(const CharSet& set) {
  CharSet rest;
  uint32_t next = 0;
  for (const CharRange r : set) {
    if (r.low > next) rest.push_back({next, r.low - 1});
    next = r.high + 1;
  }
  if (next <= kLastChar) rest.push_back({next, kLastChar});
  return normalized(rest);
}

std::u32string code_points(std::string_view text) {
  std::u32string points;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if ((byte & 0xC0) == 0x80 && !points.empty())
      points.back() = points.back() << 6 | (byte & 0x3F);
    else
      points.push_back(byte < 0x80 ? byte : byte < 0xE0 ? byte & 0x1F : byte < 0xF0 ? byte & 0x0F : byte & 7);
  }
  return points;
}

std::string utf8_of(std::u32string_view points) {
  std::string text;
  for (const char32_t c : points) {
    uint8_t bytes[4];
    text.append(reinterpret_cast<const char*>(bytes), encode(c, bytes));
  }
  return text;
}

StateId utf8_character(Automaton& a, const CharSet& set, StateId next) {
  std::vector<Edge> edges;
  for (const CharRange r : set) add_utf8(a, r.low, r.high, next, edges);
  return a.bytes(std::move(edges));
}

StateId string_character(Automaton& a, const CharSet& set, StateId next) {
  std::vector<Edge> edges;
  std::vector<StateId> escapes;
  for (const CharRange r : set) {
    uint32_t plain = r.low;
    for (uint32_t c = r.low; c <= std::min<uint32_t>(r.high, '\\'); ++c) {
      if (!needs_escape(c)) continue;
      if (c > plain) add_utf8(a, plain, c - 1, next, edges);
      escapes.push_back(escape_of(a, c, next));
      plain = c + 1;
    }
    if (plain <= r.high) add_utf8(a, plain, r.high, next, edges);
  }
  if (!escapes.empty()) edges.push_back({'\\', '\\', a.split(escapes)});
  return a.bytes(std::move(edges));
}

StateId any_string_character(Automaton& a, StateId next) {
  const StateId plain =
      string_character(a, normalized({{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, kLastChar}}), next);
  std::vector<Edge> escapes = {{'u', 'u', unicode_escape(a, next)}};
  for (const char c : std::string_view("\"\\/bfnrt"))
    escapes.push_back({static_cast<uint8_t>(c), static_cast<uint8_t>(c), next});
  return a.split({plain, a.byte('\\', a.bytes(std::move(escapes)))});
}

}  // namespace moesaic::grammar
