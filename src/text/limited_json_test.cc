#include "text/limited_json.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace moesaic::text {
namespace {

std::string repeated(size_t count, const std::function<std::string(size_t)>& of) {
  std::string list;
  for (size_t i = 0; i < count; ++i) list += (i == 0 ? "" : ",") + of(i);
  return list;
}

std::string list_of(size_t count, const std::string& value) {
  return "[" + repeated(count, [&](size_t) { return value; }) + "]";
}

std::string object_of(size_t members) {
  return "{" + repeated(members, [](size_t i) { return "\"" + std::to_string(i) + "\":1"; }) + "}";
}

std::string refusal(const std::string& json) { return parse_ordered_json(json, "j").status().message(); }

TEST(LimitedJson, ChecksStrings) {
  const OrderedJson json = {{"a", "text"}, {"b", nullptr}, {"c", 5}};
  EXPECT_TRUE(check_strings(json, {"a", "b", "absent"}).ok());
  EXPECT_EQ(check_strings(json, {"a", "c"}).message(), "c is not a string");
  EXPECT_TRUE(check_strings(OrderedJson::array(), {"a"}).ok());
}

TEST(LimitedJson, TakesWhatRequestsHold) {
  for (const std::string& json :
       {list_of(16, list_of(131'072, "1")), list_of(30'000, R"({"role":"user","content":[{"type":"text"}]})"),
        object_of(kOrderedLimits.members), list_of(100, object_of(1000)), list_of(400'000, R"("a")"),
        std::string(64, '[') + std::string(64, ']'), "\"" + std::string(1 << 20, ',') + R"([{:\")" + "\""})
    EXPECT_EQ(refusal(json), "") << json.substr(0, 80);
}

// Each kind of thing by itself, in all the ways in which it can stand in a text.
TEST(LimitedJson, BoundsWhatIsBuilt) {
  const auto says = [](const std::string& json, const char* what) {
    EXPECT_NE(refusal(json).find(what), std::string::npos) << json.substr(0, 60) << ": " << refusal(json);
  };
  says(list_of(5'000'000, "{}"), "100000 objects and arrays");
  says(R"({"messages":)" + list_of(5'000'000, "{}") + "}", "100000 objects and arrays");
  says(list_of(5'000'000, "[]"), "100000 objects and arrays");
  says(list_of(2'000'000, "{\"a\": [[]]}"), "100000 objects and arrays");
  says(list_of(7'000'000, "1"), "3000000 values");
  says(list_of(3'100'000, "null"), "3000000 values");
  says(list_of(600'000, "\"\""), "500000 strings");
  says(list_of(600'000, R"("\"\\")"), "500000 strings");
  says(list_of(100, object_of(9'000)), "500000 strings");
  says(list_of(45, object_of(9'000)), "objects have too many members");
  says(object_of(kOrderedLimits.members + 1), "10000 members");
  says(std::string(65, '['), "deeper than 64");
  says(std::string(1 << 20, '{'), "deeper than 64");
  says(std::string(1 << 20, '"'), "500000 strings");
}

OrderedJson exact(const std::string& json) { return parse_exact_json(json, "j").value(); }

TEST(LimitedJson, NumbersThatADoubleDoesNotHoldKeepTheirText) {
  for (const std::string kept :
       {"18446744073709551616", "-9223372036854775809", "100000000000000000007", "3.14159265358979323846",
        "-0.69999998807907104492", "1.00000000000000000001e5", "9007199254740993.0", "1e-400", "4.9e-324"}) {
    EXPECT_FALSE(exact(kept).is_number()) << kept;
    const std::string inside = fmt::format(R"({{"a":[{0},{{"b":{0}}}]}})", kept);
    EXPECT_EQ(compact_json(exact(inside)), inside);
    EXPECT_EQ(double_of(exact(kept)), std::strtod(kept.c_str(), nullptr));
    EXPECT_EQ(has_long_integer(inside),
              kept.size() > 10 && double_of(exact(kept)) == std::trunc(*double_of(exact(kept))))
        << kept;
    EXPECT_FALSE(has_long_integer("[\"\\\"" + kept + "\"]"));
  }
  for (const char* number :
       {"18446744073709551615", "-9223372036854775808", "0", "-0.0", "0.0e5", "0.5", "1.50", "10e-1", "1E+20",
        "0.30000000000000004", "5e-324", "1.7976931348623157e308"}) {
    EXPECT_TRUE(exact(number).is_number() && !has_long_integer(number)) << number;
    EXPECT_EQ(double_of(exact(number)), std::strtod(number, nullptr));
  }
  for (const char* held : {"-9223372036854776000", "18446744073709552000", "100000000000000000000"})
    EXPECT_TRUE(!exact(held).is_number() && !has_long_integer(held)) << held;
  EXPECT_FALSE(double_of(exact("\"1\"")) || double_of(exact("null")));
}

TEST(LimitedJson, ExactJsonIsReadAsOtherJson) {
  for (const char* json :
       {R"([1,-2,{"a":"b","c":null,"a":[true,false]},[],{},1.5,"\u00e9\\",{"":{"x":[[{}]]}}])", "\"a\"",
        "null", "[\"\xEF\xBF\xBD\\ud83d\"]", "{\"b\":1,\"a\":2,\"b\":3}"})
    EXPECT_EQ(exact(json), parse_ordered_json(json, "j").value()) << json;
  EXPECT_EQ(parse_exact_json("[[]]", "j", 2).value().size(), 1u);
  EXPECT_EQ(parse_exact_json("[[]]", "j", 1).status().message(),
            "j: the JSON is nested deeper than 1 levels");
}

TEST(LimitedJson, CountsNothingInStrings) {
  std::string text = "\"";
  for (int i = 0; i < 200'000; ++i) text += R"([{\"a\":},\\)";
  EXPECT_EQ(refusal(text + "\""), "");
}

TEST(LimitedJson, RefusesWhatIsNoJson) {
  for (const char* json : {"", "{", "]", "\"", "\"\\", "{]", "nul", "1,2", ":", "[1,]", "\"\xFF\""})
    EXPECT_FALSE(parse_ordered_json(json, "j").ok() || parse_exact_json(json, "j").ok()) << json;
}

// The parser that is used would take a NUL for the end.
TEST(LimitedJson, NothingFollowsTheValue) {
  using std::string_literals::operator""s;
  for (const std::string& rest :
       {"\0"s, "\0\n"s, "\0{}"s, " \0 "s, "{}"s, ","s, "x"s, "\x01"s, "//"s, "\xC2\xA0"s}) {
    for (const std::string value : {"{\"a\": 1}", "[]", "1", "\"a\"", "null"}) {
      EXPECT_FALSE(parse_ordered_json(value + rest, "j").ok()) << value << rest;
      EXPECT_FALSE(parse_limited_json(value + rest, "j").ok()) << value << rest;
      EXPECT_FALSE(parse_exact_json(value + rest, "j").ok()) << value << rest;
    }
  }
  for (const std::string& inside : {"{\"a\"\0: 1}"s, "\0{}"s, "[1,\0]"s, "\"\0\""s})
    EXPECT_FALSE(parse_ordered_json(inside, "j").ok());
  EXPECT_TRUE(parse_ordered_json("\xEF\xBB\xBF {} \t\r\n", "j").ok());
}

// Halves of a pair alone, in the wrong order, in each other's way, behind other escapes, in names and values.
TEST(LimitedJson, LoneSurrogatesAreReplaced) {
  const std::pair<const char*, const char*> kTexts[] = {
      {R"(hi \ud83d there)", "hi \xEF\xBF\xBD there"},
      {R"(\uD83D)", "\xEF\xBF\xBD"},
      {R"(\uDE00)", "\xEF\xBF\xBD"},
      {R"(\ude00\ud83d)", "\xEF\xBF\xBD\xEF\xBF\xBD"},
      {R"(\ud83d\ud83d\ude00\ude00)", "\xEF\xBF\xBD\xF0\x9F\x98\x80\xEF\xBF\xBD"},
      {R"(\ud83d\n\ude00)", "\xEF\xBF\xBD\n\xEF\xBF\xBD"},
      {R"(\ud83d\u0041)",
       "\xEF\xBF\xBD"
       "A"},
      {R"(\\ud83d \\\ud83d)", "\\ud83d \\\xEF\xBF\xBD"},
      {R"(\ud83d\ude00)", "\xF0\x9F\x98\x80"},
      {R"(\ud7ff\ue000)", "\xED\x9F\xBF\xEE\x80\x80"}};
  for (const auto& [text, want] : kTexts) {
    const std::string json = std::string(R"({"k)") + text + R"(": [")" + text + "\"]}";
    const auto ordered = parse_ordered_json(json, "j");
    ASSERT_TRUE(ordered.ok()) << json;
    EXPECT_EQ(ordered.value()[std::string("k") + want][0], want) << json;
    EXPECT_EQ(parse_limited_json(json, "j").value()[std::string("k") + want][0], want) << json;
  }
  for (const char* json :
       {R"("\ud83)", R"("\ud83d)", R"("\ud83")", R"("\ud83d\u")", R"("\ud83d\ude0g")", R"(\ud83d)"})
    EXPECT_FALSE(parse_ordered_json(json, "j").ok()) << json;
}

// A vocabulary's file may hold more, and is no request. Small values take many times their text's bytes.
TEST(LimitedJson, FilesMayBeLarge) {
  EXPECT_TRUE(parse_limited_json(list_of(600'000, "\"\""), "file").ok());
  EXPECT_FALSE(parse_limited_json(list_of(kMostFileValues + 1, "0"), "file").ok());
  EXPECT_FALSE(parse_limited_json(std::string(65, '[') + std::string(65, ']'), "file").ok());
}

}  // namespace
}  // namespace moesaic::text
