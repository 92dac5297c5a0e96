// Values that are written as their text, within others.
#include "openai/spliced_json.h"

#include <gtest/gtest.h>

#include "openai/fields.h"
#include "openai/sse.h"

namespace moesaic::openai {
namespace {

TEST(SplicedJson, StandsAsItsText) {
  constexpr const char* kText = R"({"id": 123456789012345678901, "x": [1.0e0, "é"]})";
  EXPECT_EQ(dump(spliced(kText)), kText);
  EXPECT_EQ(dump({{"a", 1}, {"b", spliced(kText)}, {"c", "d"}}),
            R"({"a":1,"b":)" + std::string(kText) + R"(,"c":"d"})");
  EXPECT_EQ(dump(Json::array({spliced("1"), "x", spliced("[2]"), Json::array({Json{{"y", spliced("3")}}})})),
            R"([1,"x",[2],[{"y":3}]])");
}

TEST(SplicedJson, InSplicedText) {
  const Json inner = {{"a", spliced("1.50")}, {"b", Json::array()}};
  EXPECT_EQ(dump({{"outer", spliced(dump(inner))}}), R"({"outer":{"a":1.50,"b":[]}})");
}

TEST(SplicedJson, NothingThatIsReadIsTakenForIt) {
  const std::string text = R"({"bytes":[49],"subtype":null})";  // as nlohmann writes a binary value
  const Json json = {{"content", text}, {"read", Json::parse(text)}, {text, spliced("0")}};
  EXPECT_EQ(dump(json),
            R"({"content":)" + Json(text).dump() + R"(,"read":)" + text + "," + Json(text).dump() + ":0}");
}

TEST(SplicedJson, NamesAndTextsBesideItAreUtf8) {
  EXPECT_EQ(dump({{"a\xff\"", "b\xff"}, {"c", spliced("1")}}),
            "{\"a\xEF\xBF\xBD\\\"\":\"b\xEF\xBF\xBD\",\"c\":1}");
}

TEST(OneLine, EscapesWhatSomeClientsTakeForLineBreaks) {
  EXPECT_EQ(one_line("a\xC2\x85"
                     "b\xE2\x80\xA8\xE2\x80\xA9"
                     "c\xC2\xA9\xE2\x82\xAC"),
            "a\\u0085b\\u2028\\u2029c\xC2\xA9\xE2\x82\xAC");
  EXPECT_EQ(one_line("\xE2\x80"), "\xE2\x80");
}

// Once for each of them was hours of work for 16 MB.
TEST(OneLine, ManyAreEscapedInOnePass) {
  constexpr size_t kBreaks = 2'000'000;
  std::string text, escaped;
  for (size_t i = 0; i < kBreaks; ++i) text += "\xE2\x80\xA8", escaped += "\\u2028";
  EXPECT_TRUE(one_line(text) == escaped);
}

TEST(SplicedJson, AnArrayGrowsAsText) {
  ArrayText array;
  EXPECT_TRUE(array.empty());
  EXPECT_EQ(dump(array.json()), "[]");
  Json values = Json::array();
  for (int i = 0; i < 1000; ++i) {
    values.push_back(
        {{"token", std::to_string(i)}, {"logprob", -i / 7.0}, {"top", Json::array({nullptr, i})}});
    array.push_back(values.back());
    EXPECT_FALSE(array.empty());
  }
  EXPECT_EQ(dump({{"content", array.json()}}), dump({{"content", values}}));
  ArrayText other;
  other.push_back(spliced("1.50"));
  other.push_back(array.json());
  EXPECT_EQ(dump(other.json()), "[1.50," + dump(values) + "]");
}

}  // namespace
}  // namespace moesaic::openai
