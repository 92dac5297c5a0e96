#include "load_events.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace moesaic::app {
namespace {

std::vector<std::string> all_of(LoadEventLines& lines) {
  std::vector<std::string> all;
  for (std::string data; lines.next(data);) all.push_back(data);
  return all;
}

TEST(LoadEvents, LinesMayComeInAnyPortions) {
  const std::string stream = ": ping\n\nevent: x\ndata: one\r\n\r\ndata:two\n\ndata:  three\n\ndata: cut";
  const std::vector<std::string> want = {"one", "two", " three"};
  LoadEventLines whole;
  ASSERT_TRUE(whole.add(stream));
  EXPECT_EQ(all_of(whole), want);
  LoadEventLines lines;
  std::vector<std::string> got;
  for (const char c : stream) {
    ASSERT_TRUE(lines.add(std::string_view(&c, 1)));
    for (const std::string& data : all_of(lines)) got.push_back(data);
  }
  EXPECT_EQ(got, want);
}

TEST(LoadEvents, ALineWithoutAnEndIsRefused) {
  LoadEventLines lines;
  EXPECT_TRUE(lines.add(std::string(LoadEventLines::kMostLine, 'x')));
  EXPECT_FALSE(lines.add("x"));
}

TEST(LoadEvents, TextAndEnd) {
  EXPECT_EQ(read_load_event(R"({"choices":[{"text":"a"}]})").text, "a");
  EXPECT_FALSE(read_load_event(R"({"choices":[{"text":"a","finish_reason":null}]})").last);
  EXPECT_TRUE(read_load_event(R"({"choices":[{"text":"a","finish_reason":"length"}]})").last);
  EXPECT_TRUE(read_load_event("[DONE]").last);
}

TEST(LoadEvents, Usage) {
  EXPECT_EQ(read_load_event(R"({"choices":[],"usage":{"completion_tokens":7}})").usage, 7U);
  EXPECT_EQ(read_load_event(R"({"choices":[{"text":"a"}],"usage":{"completion_tokens":7}})").usage, 7U);
  EXPECT_EQ(read_load_event(R"({"usage":{"completion_tokens":18446744073709551615}})").usage, UINT64_MAX);
  for (const char* data : {"[DONE]", R"({"choices":[{"text":"a"}]})", R"({"choices":[],"usage":null})"})
    EXPECT_FALSE(read_load_event(data).usage.has_value()) << data;
  for (const char* usage :
       {"{}", "[]", "[7]", "7", "true", "\"x\"", R"({"total_tokens":7})", R"({"completion_tokens":null})",
        R"({"completion_tokens":-7})", R"({"completion_tokens":7.5})", R"({"completion_tokens":"7"})",
        R"({"completion_tokens":1e99})", R"({"completion_tokens":18446744073709551616})",
        R"({"completion_tokens":[7]})", R"({"completion_tokens":{}})"})
    EXPECT_EQ(read_load_event(R"({"choices":[],"usage":)" + std::string(usage) + "}").usage, 0U) << usage;
}

TEST(LoadEvents, OddButHarmless) {
  for (const char* data :
       {"{}", R"({"choices":null})", R"({"choices":[]})", R"({"choices":[null]})", R"({"choices":[3]})",
        R"({"choices":{"a":1}})", R"({"choices":"x"})", R"({"choices":[{"text":null}]})",
        R"({"choices":[{"text":[1]}]})", R"({"choices":[],"usage":{}})", R"({"error":null})"}) {
    const LoadEvent event = read_load_event(data);
    EXPECT_EQ(event.text + event.error, "") << data;
    EXPECT_FALSE(event.last) << data;
  }
}

TEST(LoadEvents, ErrorsAreTold) {
  EXPECT_EQ(read_load_event(R"({"error":{"message":"out of memory","code":500}})").error, "out of memory");
  EXPECT_EQ(read_load_event(R"({"error":"busy"})").error, "busy");
  EXPECT_EQ(read_load_event(R"({"error":{}})").error, "an event tells of an error");
  for (const char* data : {"", "{", "3", "[]", "null", "{\"choices\":[{\"text\":\"\xff\"}]}"})
    EXPECT_EQ(read_load_event(data).error, "an event is no JSON object") << data;
}

}  // namespace
}  // namespace moesaic::app
