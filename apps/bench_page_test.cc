#include "bench_page.h"

#include <gtest/gtest.h>

#include <string>

namespace moesaic::app {
namespace {

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

BenchPoint decoding(int batch, double tok_s, int depth = 0) {
  return {.tokens = 32,
          .depth = depth,
          .batch = batch,
          .tok_s = tok_s,
          .least = tok_s,
          .most = tok_s,
          .roofline = 2 * tok_s};
}

TEST(BenchPage, HasALineForEachRunAndItsRoofline) {
  const BenchRun one{"first", {decoding(1, 100), decoding(8, 500), decoding(64, 2000)}};
  const BenchRun two{"second", {decoding(1, 50), decoding(8, 300)}};
  const std::string page = bench_page({one, two});
  EXPECT_EQ(count(page, "<polyline"), 4u);
  EXPECT_EQ(count(page, "stroke-dasharray"), 2u);
  EXPECT_EQ(count(page, "<circle"), 5u);
  EXPECT_EQ(count(page, "<tr>"), 6u);
  EXPECT_NE(page.find("50% of the roofline"), std::string::npos);
  EXPECT_NE(page.find("second: tg32, depth 0"), std::string::npos);
  EXPECT_EQ(page.find("nan"), std::string::npos);
  EXPECT_EQ(page.find("http"), std::string::npos);  // nothing from elsewhere
}

TEST(BenchPage, DrawsDepthsAndPrompts) {
  BenchPoint prompt{.prefill = true, .tokens = 512, .tok_s = 7000, .least = 6900, .most = 7100};
  const std::string page = bench_page({{"run", {decoding(1, 100), decoding(1, 90, 4096), prompt}}});
  EXPECT_NE(page.find("tokens in the KV cache"), std::string::npos);
  EXPECT_EQ(count(page, "<rect"), 1u);
  EXPECT_NE(page.find(">7,000<"), std::string::npos);
}

TEST(BenchPage, OneTestIsABar) {
  const std::string page = bench_page({{"run", {decoding(1, 100)}}});
  EXPECT_EQ(count(page, "<polyline"), 0u);
  EXPECT_EQ(count(page, "<rect"), 1u);
}

TEST(BenchPage, NamesAreEscaped) {
  const std::string page =
      bench_page({{"<script>alert('&\"')</script>", {decoding(1, 100), decoding(2, 150)}}});
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_NE(page.find("&lt;script&gt;"), std::string::npos);
}

TEST(ReadBenchRun, OwnLinesAndThoseOfLlamaBench) {
  const auto own = read_bench_run(
      R"([{"test":"tg128","depth":16,"batch":4,"tok_s":200,"tok_s_min":190,"tok_s_max":210,"share":0.5}])",
      "a.json");
  ASSERT_TRUE(own.ok());
  EXPECT_EQ(own.value().name, "a.json");
  const BenchPoint& p = own.value().points.at(0);
  EXPECT_FALSE(p.prefill);
  EXPECT_EQ(p.tokens, 128);
  EXPECT_EQ(p.depth, 16);
  EXPECT_EQ(p.batch, 4);
  EXPECT_DOUBLE_EQ(p.roofline, 400);
  const auto named = read_bench_run(
      R"([{"model":"m","device":"d","test":"tg1","depth":0,"batch":1,"tok_s":2,"tok_s_min":1,"tok_s_max":3}])",
      "c.json");
  ASSERT_TRUE(named.ok());
  EXPECT_EQ(named.value().name, "m on d (c.json)");
  const auto llama = read_bench_run(
      R"([{"n_prompt":512,"n_gen":0,"n_depth":0,"avg_ts":1000.5,"stddev_ts":10},{"n_prompt":0,"n_gen":64,"avg_ts":30}])",
      "b.json");
  ASSERT_TRUE(llama.ok());
  EXPECT_TRUE(llama.value().points.at(0).prefill);
  EXPECT_DOUBLE_EQ(llama.value().points.at(0).least, 990.5);
  EXPECT_EQ(llama.value().points.at(1).tokens, 64);
  EXPECT_DOUBLE_EQ(llama.value().points.at(1).most, 30);
}

TEST(ReadBenchRun, WhatIsNoRunIsAnErrorThatNamesTheFile) {
  for (const char* text :
       {"", "{}", "[]", "[1]", "nonsense",
        R"([{"test":"xx5","depth":0,"batch":1,"tok_s":1,"tok_s_min":1,"tok_s_max":1}])",
        R"([{"test":"tg","depth":0,"batch":1,"tok_s":1,"tok_s_min":1,"tok_s_max":1}])",
        R"([{"test":"tg5","depth":-1,"batch":1,"tok_s":1,"tok_s_min":1,"tok_s_max":1}])",
        R"([{"test":"tg5","depth":0,"batch":0,"tok_s":1,"tok_s_min":1,"tok_s_max":1}])",
        R"([{"test":"tg5","depth":0,"batch":1e300,"tok_s":1,"tok_s_min":1,"tok_s_max":1}])",
        R"([{"test":"tg5","depth":0,"batch":1,"tok_s":0,"tok_s_min":1,"tok_s_max":1}])",
        R"([{"test":"tg5","depth":0,"batch":1,"tok_s":"1","tok_s_min":1,"tok_s_max":1}])",
        R"([{"test":"tg5","depth":0,"batch":1,"tok_s":1e300,"tok_s_min":1,"tok_s_max":1}])",
        R"([{"test":"tg5","depth":0,"batch":1,"tok_s":1,"tok_s_min":1,"tok_s_max":1,"share":1e300}])",
        R"([{"n_prompt":512,"n_gen":128,"avg_ts":1}])", R"([{"n_prompt":0,"n_gen":0,"avg_ts":1}])"}) {
    const auto run = read_bench_run(text, "file.json");
    ASSERT_FALSE(run.ok()) << text;
    EXPECT_NE(run.status().message().find("file.json"), std::string::npos) << text;
  }
  EXPECT_FALSE(read_bench_run(std::string(kMostRunBytes + 1, ' '), "file.json").ok());
  std::string deep(1 << 20, '[');
  EXPECT_FALSE(read_bench_run(deep, "file.json").ok());
}

}  // namespace
}  // namespace moesaic::app
