#include "base/siphash.h"

#include <gtest/gtest.h>

#include <vector>

namespace moesaic {
namespace {

// vectors.h of the reference implementation: the key 00 01 .. 0f, texts 00 01 .. of n bytes.
TEST(SipHash, GivesTheReferencesHashes) {
  const HashKey key{0x0706050403020100u, 0x0F0E0D0C0B0A0908u};
  std::vector<std::byte> text;
  const auto hash = [&](size_t bytes) {
    text.clear();
    for (size_t i = 0; i < bytes; ++i) text.push_back(static_cast<std::byte>(i));
    return SipHash(key).add(text).finish();
  };
  EXPECT_EQ(hash(0), (Hash128{0xE6A825BA047F81A3u, 0x930255C71472F66Du}));
  EXPECT_EQ(hash(1), (Hash128{0x44AF996BD8C187DAu, 0x45FC229B11597634u}));
  EXPECT_EQ(hash(15), (Hash128{0x11A8B03399E99354u, 0xD9C3CF970FEC087Eu}));
  EXPECT_EQ(hash(63), (Hash128{0x4A83502F77D15051u, 0x7CBD3F979A063E50u}));
}

TEST(SipHash, TextsInPartsGiveTheWholesHash) {
  const HashKey key{3, 5};
  std::vector<std::byte> text(100);
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<std::byte>(i * 37);
  const Hash128 whole = SipHash(key).add(text).finish();
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    SipHash parts(key);
    parts.add(std::span(text).first(cut)).add(std::span(text).subspan(cut));
    EXPECT_EQ(parts.finish(), whole) << cut;
  }
  EXPECT_NE(SipHash(HashKey{3, 6}).add(text).finish(), whole);
  EXPECT_NE(SipHash(key).add(std::span(text).first(99)).finish(), whole);
}

}  // namespace
}  // namespace moesaic
