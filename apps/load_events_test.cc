#include "load_events.h"

#include <gtest/gtest.h>

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
