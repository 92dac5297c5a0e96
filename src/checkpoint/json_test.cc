#include "checkpoint/json.h"

#include <gtest/gtest.h>

namespace moesaic {
namespace {

// The parser that is used would take a NUL for the end.
TEST(Json, NothingFollowsTheValue) {
  using std::string_literals::operator""s;
  EXPECT_TRUE(parse_json("{\"a\": 1} \n", "config.json").ok());
  for (const std::string& rest : {"\0"s, "\0{}"s, " \0"s, "{}"s, "x"s}) {
    EXPECT_FALSE(parse_json("{\"a\": 1}" + rest, "config.json").ok()) << rest;
    EXPECT_FALSE(parse_ordered_json("{\"a\": 1}" + rest, "config.json").ok()) << rest;
  }
}

}  // namespace
}  // namespace moesaic
