#include "base/siphash.h"

#include <bit>
#include <cstring>
#include <random>
#include <utility>

namespace moesaic {

static_assert(std::endian::native == std::endian::little);

SipHash::SipHash(const HashKey& key)
    : v_{key[0] ^ 0x736F6D6570736575u, key[1] ^ 0x646F72616E646F6Du ^ 0xEEu, key[0] ^ 0x6C7967656E657261u,
         key[1] ^ 0x7465646279746573u} {}

inline void SipHash::round(State& v) {
  v[0] += v[1], v[1] = std::rotl(v[1], 13) ^ v[0], v[0] = std::rotl(v[0], 32);
  v[2] += v[3], v[3] = std::rotl(v[3], 16) ^ v[2];
  v[0] += v[3], v[3] = std::rotl(v[3], 21) ^ v[0];
  v[2] += v[1], v[1] = std::rotl(v[1], 17) ^ v[2], v[2] = std::rotl(v[2], 32);
}

inline void SipHash::take(State& v, uint64_t word) {
  v[3] ^= word;
  round(v);
  round(v);
  v[0] ^= word;
}

SipHash& SipHash::add(std::span<const std::byte> bytes) {
  size_t at = 0;
  const auto byte_into_tail = [&] {
    tail_ |= static_cast<uint64_t>(bytes[at++]) << (8 * (bytes_++ % 8));
    if (bytes_ % 8 == 0) take(v_, std::exchange(tail_, 0));
  };
  while (at < bytes.size() && bytes_ % 8 != 0) byte_into_tail();
  State v = v_;
  for (; at + 8 <= bytes.size(); at += 8, bytes_ += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    take(v, word);
  }
  v_ = v;
  while (at < bytes.size()) byte_into_tail();
  return *this;
}

Hash128 SipHash::finish() const {
  State v = v_;
  take(v, tail_ | bytes_ << 56);
  const auto result = [&](size_t at, uint64_t flip) {
    v[at] ^= flip;
    for (int i = 0; i < 4; ++i) round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
  };
  const uint64_t lo = result(2, 0xEE);
  return {.lo = lo, .hi = result(1, 0xDD)};
}

HashKey random_hash_key() {
  std::random_device random;
  HashKey key{};
  for (uint64_t& word : key) word = (static_cast<uint64_t>(random()) << 32) | random();
  return key;
}

}  // namespace moesaic
