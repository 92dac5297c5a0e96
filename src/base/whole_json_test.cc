#include "base/whole_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace moesaic {
namespace {

using namespace std::string_view_literals;

TEST(WholeJson, TellsWhereATextStopsBeingJson) {
  const std::pair<std::string_view, std::string> cases[] = {
      {"", "empty where JSON is expected"},
      {" \r\n\t", "empty where JSON is expected"},
      {"x", "not valid JSON at line 1, byte 1"},
      {"{\"a\": 1,}", "not valid JSON at line 1, byte 9"},
      {"{\"a\": 1} {", "not valid JSON at line 1, byte 10"},
      {"{\n \"a\": 1,\n \"b\": NaN\n}", "not valid JSON at line 3, byte 7"},
      {"{}\n\n\0"sv, "not valid JSON at line 3, byte 1"},
      {"{\"a\"\0: 1}"sv, "not valid JSON at line 1, byte 5"},
      {"[\0"sv, "not valid JSON at line 1, byte 2"},
      {"[\"a\xC0\xAF\"]", "not UTF-8 at line 1, byte 4"},
      {"[\"\xE2\x82\"]", "not UTF-8 at line 1, byte 5"},
      {"[\"a\tb\"]", "not valid JSON at line 1, byte 4"},
      {"{\"a\": [1, 2", "not valid JSON: it ends too early"},
      {"\"abc", "not valid JSON: it ends too early"},
      {"[1]\n\n]\n", "not valid JSON at line 3, byte 1"},
      {"[1,\n -1e400]", "a number is too large at line 2, byte 7"},
      {"1e400", "a number is too large at line 1, byte 5"},
  };
  for (const auto& [text, fault] : cases) {
    EXPECT_TRUE(parse_whole_json<nlohmann::json>(text).is_discarded()) << text;
    EXPECT_EQ(json_fault(text), fault) << text;
  }
}

}  // namespace
}  // namespace moesaic
