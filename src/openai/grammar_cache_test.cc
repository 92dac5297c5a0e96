#include "openai/grammar_cache.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <stop_token>
#include <thread>
#include <vector>

namespace moesaic::openai {
namespace {

AnswerFormat constant(int value) {
  return {.chat = true, .json_schema = fmt::format(R"({{"const": {}}})", value)};
}

TEST(GrammarCache, CompilesAFormatOnce) {
  GrammarCache cache;
  EXPECT_FALSE(cache.find(constant(1)));
  const AnswerGrammar first = cache.get(constant(1)).value();
  EXPECT_EQ(cache.get(constant(1)).value().compiled(), first.compiled());
  EXPECT_EQ(cache.find(constant(1))->value().compiled(), first.compiled());
  EXPECT_EQ(cache.compiled(), 1);
}

TEST(GrammarCache, TellsFormatsApart) {
  GrammarCache cache;
  std::vector<AnswerFormat> formats = {constant(1), constant(2)};
  formats.push_back({.chat = false, .json_schema = formats[0].json_schema});
  formats.push_back({.chat = true, .functions = {{"f", R"({"type": "object"})"}}});
  formats.push_back({.chat = true, .functions = {{"f", R"({"type": "object"})"}}, .must_call = true});
  formats.push_back({.chat = true, .functions = {{"g", R"({"type": "object"})"}}});
  formats.push_back({.chat = true, .functions = {{"f", ""}, {"g", ""}}, .must_call = true});
  formats.push_back({.chat = true, .functions = {{"f", ""}}, .must_call = true});
  for (const AnswerFormat& format : formats) EXPECT_TRUE(cache.get(format).ok());
  EXPECT_EQ(cache.compiled(), formats.size());
  EXPECT_EQ(cache.size(), formats.size());
}

TEST(GrammarCache, KeepsErrors) {
  GrammarCache cache;
  const AnswerFormat wrong{.chat = true, .json_schema = "{"};
  const Result<AnswerGrammar> refused = cache.get(wrong);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(cache.get(wrong).status().message(), refused.status().message());
  EXPECT_EQ(cache.find(wrong)->status().message(), refused.status().message());
  EXPECT_EQ(cache.compiled(), 1);
}

// A client that leaves ends the work, and gets nobody else its error.
TEST(GrammarCache, KeepsNothingOfWhoLeft) {
  GrammarCache cache;
  std::stop_source left;
  left.request_stop();
  EXPECT_EQ(cache.get(constant(1), left.get_token()).status().code(), StatusCode::kCancelled);
  EXPECT_EQ(cache.size(), 0);
  EXPECT_TRUE(cache.get(constant(1)).ok());
  EXPECT_TRUE(cache.get(constant(1), left.get_token()).ok());
}

TEST(GrammarCache, ForgetsTheLeastRecentlyUsed) {
  GrammarCache cache(2);
  for (const int value : {1, 2, 1, 3}) EXPECT_TRUE(cache.get(constant(value)).ok());
  EXPECT_EQ(cache.size(), 2);
  EXPECT_TRUE(cache.find(constant(1)));
  EXPECT_FALSE(cache.find(constant(2)));
  EXPECT_TRUE(cache.find(constant(3)));
}

TEST(GrammarCache, IsBoundedInBytes) {
  GrammarCache cache(1000, 1 << 20);
  for (int i = 0; i < 20; ++i) {
    const AnswerFormat format{
        .chat = true,
        .json_schema = fmt::format(R"({{"const": "{}"}})", std::string(100'000, static_cast<char>('a' + i)))};
    EXPECT_TRUE(cache.get(format).ok());
  }
  EXPECT_LT(cache.size(), 6);
  const AnswerFormat too_large{.chat = true, .json_schema = "{" + std::string(2 << 20, ' ') + "}"};
  EXPECT_FALSE(cache.get(too_large).ok());
  EXPECT_EQ(cache.size(), 0);
}

TEST(GrammarCache, ThreadsThatAskAtATimeCompileOnce) {
  GrammarCache cache(4);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) EXPECT_TRUE(cache.get(constant(i % 3)).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cache.compiled(), 3);
}

}  // namespace
}  // namespace moesaic::openai
