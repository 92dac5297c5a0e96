#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "grammar/schema_test_cases.h"

namespace moesaic::grammar {
namespace {

TEST(JsonSchema, AnyObject) {
  check({{R"({"type": "object"})",
          {"{}", R"({"a":1})", R"({"a": [1, {"b": null}], "c": "x\n\u00e9 ü"})", "{\n  \"a\": true\n}"},
          {"", "[]", "1", "{", R"({"a" : 1})", R"({"a":1,})", R"({a:1})", " {}", "{} ", R"({"a":  1})"}}});
}

TEST(JsonSchema, AnyValue) {
  for (const char* schema : {"{}", "true"})
    check({{schema,
            {"0", "-1", "12.50", "1e5", "-0.5E-10", "true", "false", "null", "\"\"", "[]", "[1, 2]",
             "[[], [{}]]"},
            {"01", "+1", "1.", ".5", "1e", "nul", "\"", "[1,,2]", "[1 2]", "-", "--1", "1e100"}}});
}

TEST(JsonSchema, Strings) {
  check({{R"({"type": "string"})",
          {R"("")", R"("a\"b\\\/\b\f\n\r\t")", R"("\u00e9\uD83D\uDE00")", "\"\xF0\x9F\x98\x80\"", "\"\x7F\""},
          {"\"\n\"", R"("\x")", R"("\ud83d")", R"("\ude00")", "\"\xFF\"", "\"\xC0\x80\"", "\"\xED\xA0\x80\"",
           "\"\xF4\x90\x80\x80\"", "\"\xC3\""}},
         {R"({"minLength": 2, "maxLength": 3})",
          {R"("ab")", R"("abc")", "\"\xF0\x9F\x98\x80\xC3\xBC\"", R"("\uD83D\uDE00\n\\")"},
          {R"("")", R"("a")", R"("abcd")", "\"\xF0\x9F\x98\x80\"", "1"}},
         {R"({"type": "string", "maxLength": 0})", {R"("")"}, {R"("a")"}},
         {R"({"type": "string", "minLength": 1})", {R"("a")", R"("aaaaaaaaaaaa")"}, {R"("")"}}});
}

TEST(JsonSchema, Patterns) {
  check(
      {{R"({"pattern": "^[a-z]+[0-9]{2,3}$"})",
        {R"("ab12")", R"("z123")"},
        {R"("12")", R"("a1")", R"("a1234")"}},
       {R"({"pattern": "b"})", {R"("b")", R"("abc")", R"("\"b")"}, {R"("ac")", R"("")"}},
       {R"({"pattern": "^(?:a|bc)*$"})", {R"("")", R"("abca")"}, {R"("ac")", R"("b")"}},
       {R"({"pattern": "^a|c$"})", {R"("ab")", R"("bc")"}, {R"("ba")", R"("cb")"}},
       {R"({"pattern": "^\\d{3}-\\w\\s\\.[^\\d\"]?$"})",
        {R"("123-a .")", R"("123-_ .x")", R"("123-a\t.\\")"},
        {R"("123-a .5")", R"("123-a .\"")"}},
       {R"({"pattern": "^\\u00e9\\x41.$"})",
        {"\"\xC3\xA9"
         "Ax\"",
         "\"\xC3\xA9"
         "A\xF0\x9F\x98\x80\""},
        {"\"eAx\""}},
       {R"({"pattern": "^\"\\\\\\n$"})", {R"("\"\\\n")"}, {R"("\"\\n")"}},
       {R"({"pattern": "^a*$", "minLength": 2, "maxLength": 4})",
        {R"("aa")", R"("aaaa")"},
        {R"("a")", R"("aaaaa")"}},
       {R"({"pattern": "^(?<year>[12]\\d{3})?$"})", {R"("")", R"("1999")"}, {R"("3999")"}},
       {R"({"pattern": "^[\\-\\]a-c]$"})", {R"("-")", R"("]")", R"("b")"}, {R"("d")", R"("\\")"}},
       // A hyphen beside a class is one, as ECMA 262 has it without the u flag.
       {R"({"pattern": "^[\\w-.]+\\_[+-\\d]$"})", {R"("a-.b__-")", R"("-_7")"}, {R"("a+_1")", R"("a_,")"}}});
}

TEST(JsonSchema, Formats) {
  check({{R"({"format": "date"})",
          {R"("2024-02-29")", R"("2000-02-29")", R"("1999-12-31")"},
          {R"("2023-02-29")", R"("1900-02-29")", R"("2024-13-01")", R"("2024-04-31")", R"("24-01-01")"}},
         {R"({"format": "date-time"})",
          {R"("2024-05-06T07:08:09Z")", R"("2024-05-06T07:08:09.5+02:00")"},
          {R"("2024-05-06 07:08:09Z")", R"("2024-05-06T24:00:00Z")", R"("2024-05-06T07:08:09")"}},
         {R"({"format": "uuid"})", {R"("123e4567-e89b-12d3-a456-426614174000")"}, {R"("123e4567")"}},
         {R"({"format": "ipv4"})", {R"("192.168.0.255")"}, {R"("256.1.1.1")", R"("1.2.3")", R"("01.2.3.4")"}},
         {R"({"format": "ipv6"})",
          {R"("::1")", R"("::")", R"("2001:db8::1")", R"("1:2:3:4:5:6:7:8")"},
          {R"("1::2::3")"}},
         {R"({"format": "email"})", {R"("a.b@example.com")"}, {R"("a.b")", R"("@x")"}},
         {R"({"format": "hostname"})", {R"("example.com")"}, {R"("-x.com")", R"("a..b")"}},
         {R"({"format": "uri"})", {R"("https://example.com/a?b=c#d")"}, {R"("example.com")"}},
         {R"({"format": "duration"})",
          {R"("P3Y6M4DT12H30M5S")", R"("PT5M")", R"("P2W")"},
          {R"("P")", R"("3D")"}},
         {R"({"format": "time"})", {R"("07:08:09Z")"}, {R"("7:08:09Z")"}}});
}

TEST(JsonSchema, Integers) {
  check({{R"({"type": "integer"})",
          {"0", "-7", "123456789012345678"},
          {"1.0", "1e3", "-0", "007", "1234567890123456789"}},
         {R"({"type": "integer", "minimum": 3, "maximum": 17})",
          {"3", "9", "10", "17"},
          {"2", "18", "03", "100", "-3"}},
         {R"({"type": "integer", "minimum": -12, "maximum": 105})",
          {"-12", "-1", "0", "99", "105"},
          {"-13", "-0", "106", "-105", "1000"}},
         {R"({"type": "integer", "exclusiveMinimum": 0})", {"1", "10", "999"}, {"0", "-1"}},
         {R"({"type": "integer", "maximum": -5})", {"-5", "-10", "-999"}, {"-4", "0", "5"}},
         {R"({"type": "integer", "minimum": 1.5, "exclusiveMaximum": 4})", {"2", "3"}, {"1", "4"}},
         {R"({"type": "integer", "minimum": 9223372036854775807})",
          {"9223372036854775807"},
          {"9223372036854775806"}}});
}

// Every integer around every small range.
TEST(JsonSchema, IntegerRangesAreExact) {
  for (int low = -23; low <= 120; low += 7)
    for (int high = low - 1; high <= low + 110; high += 13) {
      const auto schema = nlohmann::json{{"type", "integer"}, {"minimum", low}, {"maximum", high}};
      const auto grammar = AnswerGrammar::compile({.json_schema = schema.dump()});
      ASSERT_EQ(grammar.ok(), low <= high);
      for (int i = low - 15; grammar.ok() && i < high + 15; ++i)
        EXPECT_EQ(matches(grammar.value(), std::to_string(i)), low <= i && i <= high)
            << low << " " << high << " " << i;
    }
}

TEST(JsonSchema, Numbers) {
  check({{R"({"type": "number", "minimum": 0, "maximum": 1})",
          {"0", "0.0", "0.5", "1", "1.0", "1.00"},
          {"1.01", "-0.1", "2", "0.", "-0", "1e0"}},
         {R"({"type": "number", "exclusiveMinimum": 0.25, "exclusiveMaximum": 10.5})",
          {"0.250001", "0.3", "10.49", "9", "10"},
          {"0.25", "0.250", "0.2", "10.5", "10.50", "10.6", "11"}},
         {R"({"type": "number", "maximum": -0.5})", {"-0.5", "-1", "-123.25"}, {"-0.4", "0", "1", "-0.49"}},
         {R"({"type": "number", "minimum": -2.5})", {"-2.5", "-2.499", "0", "17.5"}, {"-2.51", "-3"}},
         {R"({"type": "number", "minimum": 1e30})", {"1000000000000000000000000000000"}, {"5"}},
         {R"({"type": "number", "exclusiveMinimum": 0, "minimum": 0})", {"0.1"}, {"0", "0.0"}}});
}

TEST(JsonSchema, Objects) {
  const std::string person =
      R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"},
      "tags": {"type": "array", "items": {"type": "string"}}}, "required": ["name", "age"]})";
  check({{person,
          {R"({"name": "Nora", "age": 34})", R"({"name":"","age":0,"tags":[]})",
           "{\n  \"name\": \"x\",\n  \"age\": 1,\n  \"tags\": [\n    \"a\"\n  ]\n}"},
          {"{}", R"({"age": 34, "name": "Nora"})", R"({"name": "Nora"})",
           R"({"name": "N", "age": 1, "other": 2})", R"({"name": "N", "age": "1"})",
           R"({"name": "N", "age": 1, })"}},
         {R"({"properties": {"a": {}, "b": {}, "c": {}}})",
          {"{}", R"({"b": 1})", R"({"a": 1, "c": 2})"},
          {R"({"c": 1, "a": 2})", R"({, "b": 1})", R"({"d": 1})"}},
         {R"({"properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "integer"}})",
          {"{}", R"({"a": null})", R"({"a": null, "b": 1, "ab": 2})", R"({"": 1})", R"({"a\n": 1})",
           R"({"A": 1})"},
          {R"({"a": 1})", R"({"b": null})", R"({"a": null, "a": 1})", R"({"\u0061": 1})"}},
         {R"({"properties": {"é\"": true, "éa": true}, "additionalProperties": true})",
          {R"({"é\"": 1})", R"({"é": 1})", R"({"è": 1})", R"({"éa": 1})"},
          {R"({"é"": 1})"}},
         {R"({"type": "object", "required": ["x"]})",
          {R"({"x": 1})", R"({"x": 1, "y": 2})"},
          {"{}", R"({"y": 1})"}},
         {R"({"additionalProperties": {"type": "boolean"}, "minProperties": 1, "maxProperties": 2})",
          {R"({"a": true})", R"({"a": true, "b": false})"},
          {"{}", R"({"a": true, "b": true, "c": true})", R"({"a": 1})"}},
         {R"({"type": "object", "additionalProperties": false})", {"{}"}, {R"({"a": 1})"}}});
}

TEST(JsonSchema, Arrays) {
  check(
      {{R"({"items": {"type": "integer"}, "minItems": 1, "maxItems": 3})",
        {"[1]", "[1, 2,3]"},
        {"[]", "[1,2,3,4]", "[1.5]"}},
       {R"({"type": "array", "prefixItems": [{"type": "string"}, {"type": "null"}], "items": false, "minItems": 2})",
        {R"(["a", null])"},
        {R"(["a"])", R"(["a", null, 1])", "[]"}},
       {R"({"prefixItems": [{"type": "string"}], "items": {"type": "boolean"}})",
        {"[]", R"(["a"])", R"(["a", true, false])"},
        {"[true]", R"(["a", 1])"}},
       {R"({"items": [{"type": "string"}], "additionalItems": {"type": "null"}})",
        {R"(["a", null])"},
        {"[null]"}},
       {R"({"type": "array", "maxItems": 0})", {"[]", "[ ]"}, {"[1]"}},
       {R"({"type": "array", "minItems": 3})", {"[1,2,3]", "[1,2,3,4,5]"}, {"[1,2]"}},
       {R"({"type": "array", "items": {"type": "array", "items": {"type": "integer"}, "maxItems": 2}, "maxItems": 2})",
        {"[]", "[[], [1, 2]]"},
        {"[[1,2,3]]", "[[],[],[]]"}}});
}

TEST(JsonSchema, EnumsAndTypes) {
  check({{R"({"enum": ["a", 1, 2.5, null, true, {"k": [1, "x"]}, [], 1e20]})",
          {R"("a")", "1", "2.5", "null", "true", R"({"k": [1, "x"]})", R"({"k":[1,"x"]})", "[]", "1e20"},
          {"\"b\"", "2", "false", "{}", "1.0"}},
         {R"({"const": "é\n"})", {"\"é\\n\""}, {R"("e")"}},
         {R"({"type": "string", "enum": ["a", 1, "bcd"], "maxLength": 2})", {R"("a")"}, {"1", R"("bcd")"}},
         {R"({"type": ["integer", "null"]})", {"1", "null"}, {"1.5", "\"a\"", "true"}},
         {R"({"type": "string", "nullable": true})", {"\"a\"", "null"}, {"1"}},
         {R"({"type": "boolean"})", {"true", "false"}, {"null", "tru"}}});
}

TEST(JsonSchema, Combinations) {
  check(
      {{R"({"anyOf": [{"type": "string"}, {"type": "integer"}]})", {"\"a\"", "1"}, {"true", "1.5"}},
       {R"({"oneOf": [{"properties": {"kind": {"const": "a"}, "x": {"type": "integer"}}, "required": ["kind", "x"]},
                        {"properties": {"kind": {"const": "b"}, "y": {"type": "string"}}, "required": ["kind", "y"]}]})",
        {R"({"kind": "a", "x": 1})", R"({"kind": "b", "y": ""})"},
        {R"({"kind": "a", "y": ""})", R"({"kind": "c"})"}},
       {R"({"allOf": [{"properties": {"a": {"type": "number"}}, "required": ["a"]},
                        {"properties": {"b": {"type": "string"}, "a": {"minimum": 3}}}]})",
        {R"({"a": 3})", R"({"a": 4.5, "b": "x"})"},
        {R"({"a": 2})", R"({"b": "x"})", R"({"a": 3, "c": 1})"}},
       {R"({"type": "integer", "allOf": [{"minimum": 2}, {"maximum": 5, "type": "number"}, {"minimum": 4}]})",
        {"4", "5"},
        {"3", "6", "4.5"}},
       {R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
              "anyOf": [{"properties": {"b": {"type": "null"}}, "required": ["b"]}, {"properties": {"c": {}}}]})",
        {R"({"a": 1, "b": null})", R"({"a": 1})", R"({"a": 1, "c": "x"})"},
        {R"({"b": null})", R"({"a": 1, "d": 1})"}},
       {R"({"allOf": [{"additionalProperties": {"type": "integer"}}, {"properties": {"a": {}, "b": {"type": "string"}},
              "required": ["a"]}]})",
        {R"({"a": 1})", R"({"a": 1, "c": 2})"},
        {R"({"a": "x"})", R"({"a": 1, "b": "x"})", R"({"a": 1, "b": 1})"}}});
}

TEST(JsonSchema, References) {
  check(
      {{R"({"$defs": {"node": {"type": "object", "properties": {"value": {"type": "integer"},
              "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["value", "next"]}},
              "$ref": "#/$defs/node"})",
        {R"({"value": 1, "next": null})", R"({"value": 1, "next": {"value": 2, "next": null}})"},
        {R"({"value": 1})", R"({"value": 1, "next": {"value": 2}})"}},
       {R"({"type": "array", "items": {"$ref": "#"}})", {"[]", "[[], [[]]]"}, {"[1]", "{}"}},
       {R"({"definitions": {"a/b": {"type": "integer"}}, "properties": {"x": {"$ref": "#/definitions/a~1b", "minimum": 3,
              "description": "said twice"}}})",
        {R"({"x": 3})"},
        {R"({"x": 2})", R"({"x": "a"})"}}});
}

TEST(JsonSchema, SaysWhatItRefuses) {
  EXPECT_EQ(failure(R"({"properties": {"a": {"items": {"multipleOf": 12345678}}}})")
                .find("json_schema: properties.a.items: multipleOf"),
            0);
  EXPECT_NE(failure(R"x({"pattern": "a(?<=b)"})x").find("pattern: a look-around"), std::string::npos);
  EXPECT_NE(failure(R"({"pattern": "(a)\\1"})").find("at character 5"), std::string::npos);
  for (const char* pattern : {"(", ")", "[a", "a**", "*", "\\\\b", "[b-a]", "^*", "a{2,1}", "a{99999}",
                              "\\\\p{L}", "{", "(?:(?!a)b)*", "a(?=^b)", "(?=a)+"})
    EXPECT_NE(failure(R"({"pattern": ")" + std::string(pattern) + "\"}"), "") << pattern;
  EXPECT_EQ(failure(R"({"$ref": "https://example.com/x"})")
                .find("json_schema: $ref \"https://example.com/x\" leaves"),
            0);
  for (const char* number : {"18446744073709551616", "-123456789012345678901", "9007199254740993.0"})
    EXPECT_EQ(failure(fmt::format(R"({{"items": {{"const": {}}}}})", number)),
              "json_schema: an integer in the schema has more than 64 bits or more digits than a double");
  EXPECT_EQ(failure(R"({"$ref": "#/nothing"})"), "json_schema: $ref \"#/nothing\" points to nothing");
  EXPECT_EQ(failure(R"({"type": "integer", "minimum": 3, "maximum": 2})"),
            "json_schema: no JSON value satisfies the schema, as far as it can be followed");
  EXPECT_EQ(failure(R"({"properties": {"a": {"$ref": "#"}}, "required": ["a"]})"),
            "json_schema: no JSON value satisfies the schema, as far as it can be followed");
  EXPECT_EQ(failure("false"),
            "json_schema: no JSON value satisfies the schema, as far as it can be followed");
  EXPECT_EQ(failure("{"), "json_schema: not valid JSON: it ends too early");
  EXPECT_EQ(failure({"{}\0x", 4}), "json_schema: not valid JSON at line 1, byte 3");
  EXPECT_EQ(failure("3"), "json_schema: a schema must be an object, true or false");
  EXPECT_NE(failure(R"({"type": "strin"})"), "");
  EXPECT_NE(failure(R"({"minLength": "3"})"), "");
  EXPECT_EQ(failure(R"({"type": "object", "minProperties": 2})"),
            "json_schema: minProperties above 1 is not supported");
  EXPECT_EQ(failure(R"({"required": ["a", "b"], "minProperties": 2})"), "");
}

TEST(JsonSchema, SaysWhatItIgnores) {
  const auto grammar = AnswerGrammar::compile(
      {.json_schema = R"({"title": "T", "x-mine": 1, "type": "string", "format": "colour"})"});
  EXPECT_EQ(grammar.value().notes(), (std::vector<std::string>{"the format \"colour\" is ignored",
                                                               "the unknown keyword x-mine is ignored"}));
}

TEST(JsonSchema, FollowsThousandsOfReferences) {
  nlohmann::json chain = {{"$ref", "#/$defs/0"}};
  for (int i = 0; i < 900; ++i)
    chain["$defs"][std::to_string(i)] = {
        {"properties", {{"n", {{"$ref", "#/$defs/" + std::to_string(i + 1)}}}}}};
  chain["$defs"]["900"] = {{"type", "null"}};
  const auto grammar = AnswerGrammar::compile({.json_schema = chain.dump()});
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  EXPECT_TRUE(matches(grammar.value(), R"({"n": {"n": {}}})"));
}

}  // namespace
}  // namespace moesaic::grammar
