#include "text/bpe.h"

#include <gtest/gtest.h>

#include <random>

namespace moesaic {
namespace {

using Ids = std::vector<int32_t>;

// A vocabulary of the 256 bytes and of merges, each of two tokens that are there before it.
struct Merges {
  Vocabulary vocabulary;
  std::vector<Bpe::Merge> merges;

  Merges() {
    for (int byte = 0; byte < 256; ++byte) {
      const char c = static_cast<char>(byte);
      EXPECT_TRUE(vocabulary.add(byte, {&c, 1}).ok());
    }
  }
  void add(int32_t left, int32_t right) {
    const std::string bytes = std::string(vocabulary.bytes(left)) + std::string(vocabulary.bytes(right));
    if (vocabulary.find(bytes) >= 0) return;
    const int32_t id = vocabulary.size();
    EXPECT_TRUE(vocabulary.add(id, bytes).ok());
    merges.push_back({left, right, id});
  }
  Bpe bpe() const { return Bpe::from_merges(vocabulary, merges).value(); }

  // One pass over the text for each merge, in the order of their rank.
  Ids naive(std::string_view text) const {
    Ids ids;
    for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
    for (const Bpe::Merge& merge : merges) {
      Ids joined;
      for (size_t i = 0; i < ids.size(); ++i) {
        const bool joins = i + 1 < ids.size() && ids[i] == merge.left && ids[i + 1] == merge.right;
        joined.push_back(joins ? merge.joined : ids[i]);
        if (joins) ++i;
      }
      ids = std::move(joined);
    }
    return ids;
  }
};

Ids encode(const Bpe& bpe, std::string_view text, const TokenLimit& limit = {}) {
  Ids ids = {-7};  // tokens already there are left alone
  bpe.encode(text, ids, limit);
  EXPECT_EQ(ids.front(), -7);
  ids.erase(ids.begin());
  return ids;
}

TEST(Bpe, LongPiecesOfRandomVocabularies) {
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    Merges made;
    const int letters = 1 + static_cast<int>(random() % 3), count = 3 + static_cast<int>(random() % 60);
    const auto token = [&] {
      const size_t of = letters + made.merges.size();
      const size_t at = random() % of;
      return static_cast<int32_t>(at < static_cast<size_t>(letters) ? 'a' + at : 256 + at - letters);
    };
    for (int i = 0; i < count; ++i) made.add(token(), token());
    std::string text;
    while (text.size() < 60'000 + random() % 3) text += static_cast<char>('a' + random() % letters);
    ASSERT_EQ(encode(made.bpe(), text), made.naive(text)) << round;
  }
}

// Tokens as long as several windows: nothing is final until the text ends.
TEST(Bpe, TokensLongerThanAWindow) {
  Merges made;
  int32_t last = 'a';
  for (int i = 0; i < 17; ++i) {
    made.add(last, last);
    last = made.vocabulary.size() - 1;
  }
  for (const size_t size : {16'384, 16'385, 65'535, 200'001}) {
    const std::string text(size, 'a');
    ASSERT_EQ(encode(made.bpe(), text), made.naive(text)) << size;
  }
}

// "xy" joins hundreds of letters to its left, which a window that ends before it takes for something else.
TEST(Bpe, WhatComesLateChangesWhatWasSettled) {
  Merges made;
  made.add('x', 'y');
  for (int i = 0; i < 300; ++i) made.add('a', made.vocabulary.size() - 1);  // a...axy
  made.add('a', 'a');
  const Bpe bpe = made.bpe();
  for (const size_t before : {16'364, 16'434, 16'535, 16'683}) {
    const std::string text = std::string(before, 'a') + "xy" + std::string(17'001, 'a') + "xya";
    ASSERT_EQ(encode(bpe, text), made.naive(text)) << before;
  }
}

TEST(Bpe, ALimitEndsTheWork) {
  Merges made;
  made.add('a', 'a');
  const Bpe bpe = made.bpe();
  const std::string text(10 << 20, 'a');
  const Ids some = encode(bpe, text, {.most = 100});
  EXPECT_GT(some.size(), 100);
  EXPECT_LT(some.size(), 20'000);
  std::stop_source cancel;
  cancel.request_stop();
  EXPECT_TRUE(encode(bpe, text, {.cancel = cancel.get_token()}).empty());
}

}  // namespace
}  // namespace moesaic
