#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "grammar/schema_cases.h"
#include "grammar/schema_matches.h"

namespace moesaic::grammar {
namespace {

struct Case {
  std::string schema;
  std::vector<std::string> taken, refused;
};

void check(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    const auto grammar = AnswerGrammar::compile({.json_schema = c.schema});
    ASSERT_TRUE(grammar.ok()) << c.schema << "\n" << grammar.status().message();
    for (const std::string& text : c.taken)
      EXPECT_TRUE(matches(grammar.value(), text)) << c.schema << "\n" << text;
    for (const std::string& text : c.refused)
      EXPECT_FALSE(matches(grammar.value(), text)) << c.schema << "\n" << text;
  }
}

std::string failure(const std::string& schema) {
  const auto grammar = AnswerGrammar::compile({.json_schema = schema});
  return grammar.ok() ? "" : grammar.status().message();
}

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
  check({{R"({"pattern": "^[a-z]+[0-9]{2,3}$"})",
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
         {R"({"pattern": "^[\\-\\]a-c]$"})", {R"("-")", R"("]")", R"("b")"}, {R"("d")", R"("\\")"}}});
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

TEST(JsonSchema, PatternProperties) {
  check({{R"({"patternProperties": {"^a": {"type": "integer"}, "b$": {"type": "boolean"}}})",
          {"{}", R"({"a": 1})", R"({"xb": true})", R"({"a1": 1, "b": false, "a2": 2})"},
          {R"({"a": true})", R"({"b": 1})", R"({"ab": 1})", R"({"ab": true})", R"({"x": 1})", R"({"\u0061": true})"}},
         {R"({"properties": {"ax": {"type": "integer"}}, "patternProperties": {"^a": {"minimum": 3}},
              "additionalProperties": {"type": "null"}})",
          {R"({"ax": 3})", R"({"ax": 3, "ay": 4, "x": null})"},
          {R"({"ax": 2})", R"({"ay": 2})", R"({"x": 1})", R"({"ay": 4, "ax": "s"})"}},
         {R"({"patternProperties": {"^x-": true}, "additionalProperties": false, "required": ["x-1"]})",
          {R"({"x-1": 1})", R"({"x-1": 1, "x-2": 2})"},
          {"{}", R"({"x-2": 1})", R"({"x-1": 1, "y": 1})"}},
         {R"({"type": "object", "propertyNames": {"pattern": "^[a-c]+$", "maxLength": 3}})",
          {"{}", R"({"abc": 1})"},
          {R"({"abca": 1})", R"({"d": 1})", R"({"": 1})"}},
         {R"({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"}})",
          {"{}", R"({"a": 1, "b": 2})"},
          {R"({"c": 1})", R"({"a": "x"})"}}});
  EXPECT_EQ(failure(R"({"required": ["a"], "propertyNames": {"pattern": "^b"}})"),
            "json_schema: no JSON value satisfies the schema");
}

TEST(JsonSchema, RequiredNamesOnly) {
  check({{R"({"properties": {"a": {"type": "integer"}}, "required": ["b"]})",
          {R"({"a": 1, "b": []})", R"({"b": "x"})"},
          {"{}", R"({"a": 1})", R"({"b": 1, "c": 1})"}},
         {R"({"additionalProperties": {"type": "null"}, "required": ["b"]})", {R"({"b": null})"}, {R"({"b": 1})"}}});
  EXPECT_EQ(failure(R"({"properties": {"a": {}}, "additionalProperties": false, "required": ["b"]})"),
            "json_schema: no JSON value satisfies the schema");
}

TEST(JsonSchema, NumbersOfProperties) {
  check({{R"({"properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2})",
          {R"({"a": 1, "b": 2})", R"({"a": 1, "c": 2})", R"({"a": 1, "b": 2, "c": 3})"},
          {"{}", R"({"a": 1})", R"({"c": 1})"}},
         {R"({"properties": {"a": {}, "b": {}, "c": {}}, "maxProperties": 1})",
          {"{}", R"({"a": 1})", R"({"c": 1})"},
          {R"({"a": 1, "b": 1})", R"({"b": 1, "c": 1})"}},
         {R"({"properties": {"a": {}}, "additionalProperties": true, "minProperties": 2, "maxProperties": 3})",
          {R"({"a": 1, "x": 2})", R"({"a": 1, "x": 2, "y": 3})"},
          {R"({"a": 1})", R"({"x": 1, "x": 2})", R"({"a": 1, "x": 2, "y": 3, "z": 4})"}}});
}

TEST(JsonSchema, Not) {
  check({{R"({"not": {"type": ["string", "object", "array"]}})", {"1", "true", "null"}, {R"("a")", "{}", "[]"}},
         {R"({"type": "string", "not": {"enum": ["a", "ab"]}})", {R"("")", R"("b")", R"("abc")"}, {R"("a")", R"("ab")"}},
         {R"({"type": "string", "not": {"pattern": "b"}, "maxLength": 3})", {R"("aca")"}, {R"("abc")", R"("aaaa")"}},
         {R"({"type": "integer", "minimum": 1, "maximum": 4, "not": {"const": 3}})", {"1", "2", "4"}, {"3", "0", "5"}},
         {R"({"type": "object", "not": {"required": ["a"]}})", {"{}", R"({"b": 1})"}, {R"({"a": 1})"}},
         {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "not": {"required": ["a", "b"]}})",
          {"{}", R"({"a": 1})", R"({"b": 1})"},
          {R"({"a": 1, "b": 1})"}},
         {R"({"type": "array", "not": {"minItems": 2}})", {"[]", "[1]"}, {"[1, 2]"}},
         {R"({"not": {"not": {"type": "null"}}})", {"null"}, {"1"}}});
  EXPECT_EQ(failure(R"({"not": {}})"), "json_schema: no JSON value satisfies the schema");
  EXPECT_EQ(failure(R"({"not": {"uniqueItems": true}})"), "json_schema: not: such a schema cannot be excluded");
}

TEST(JsonSchema, OneOfHoldsOnce) {
  check({{R"({"oneOf": [{"type": "number", "minimum": 3}, {"type": "integer", "maximum": 5}]})",
          {"2", "6", "7.5"},
          {"3", "4", "5", "2.5"}},
         {R"({"type": "object", "properties": {"a": {}, "b": {}}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]})",
          {R"({"a": 1})", R"({"b": 1})"},
          {"{}", R"({"a": 1, "b": 1})"}},
         {R"({"oneOf": [{"properties": {"a": {"type": "string"}}, "additionalProperties": false},
                          {"properties": {"b": {"type": "string"}}, "additionalProperties": false}]})",
          {R"({"a": ""})", R"({"b": ""})"},
          {"{}", R"({"a": "", "b": ""})"}},
         {R"({"oneOf": [{"pattern": "a", "type": "string"}, {"pattern": "b", "type": "string"}]})",
          {R"("a")", R"("b")"},
          {R"("ab")", R"("c")"}}});
  EXPECT_EQ(failure(R"({"oneOf": [true, true]})"), "json_schema: no JSON value satisfies the schema");
}

TEST(JsonSchema, Conditions) {
  check({{R"({"type": "object", "properties": {"kind": {"enum": ["a", "b"]}, "x": {"type": "integer"}},
              "required": ["kind"], "if": {"properties": {"kind": {"const": "a"}}}, "then": {"required": ["x"]},
              "else": {"properties": {"x": false}}})",
          {R"({"kind": "a", "x": 1})", R"({"kind": "b"})"},
          {R"({"kind": "a"})", R"({"kind": "b", "x": 1})"}},
         {R"({"properties": {"a": {}, "b": {}, "c": {}}, "dependentRequired": {"a": ["b"]}})",
          {"{}", R"({"b": 1})", R"({"a": 1, "b": 2})", R"({"c": 3})"},
          {R"({"a": 1})", R"({"a": 1, "c": 2})"}},
         {R"({"properties": {"a": {}, "b": {}}, "dependencies": {"a": {"properties": {"b": {"type": "null"}}}}})",
          {R"({"a": 1, "b": null})", R"({"a": 1})", R"({"b": 1})"},
          {R"({"a": 1, "b": 1})"}},
         {R"({"properties": {"a": {}}, "dependentSchemas": {"a": {"required": ["b"]}}})",
          {"{}", R"({"a": 1, "b": 2})"},
          {R"({"a": 1})"}},
         {R"({"allOf": [{"properties": {"a": {}}}], "properties": {"b": {}}, "unevaluatedProperties": false})",
          {R"({"b": 1, "a": 2})", R"({"a": 2})"},
          {R"({"c": 1})"}},
         {R"({"allOf": [{"properties": {"a": {}}}, {"unevaluatedProperties": false}], "type": "object"})",
          {"{}"},
          {R"({"a": 1})"}}});
}

TEST(JsonSchema, MultipleOf) {
  check({{R"({"type": "integer", "multipleOf": 7})", {"0", "7", "-49", "700000"}, {"1", "6", "50", "-1"}},
         {R"({"type": "integer", "multipleOf": 5, "minimum": 3, "maximum": 21})", {"5", "20"}, {"0", "3", "25"}},
         {R"({"type": "number", "multipleOf": 0.25})", {"0.5", "1", "3.75", "-2.50"}, {"0.3", "1.01", "0.125"}},
         {R"({"type": "number", "multipleOf": 0.01, "exclusiveMinimum": 0})", {"0.01", "12.3"}, {"0", "0.001"}},
         {R"({"type": "number", "allOf": [{"multipleOf": 4}, {"multipleOf": 6}]})", {"12", "24"}, {"4", "6", "18"}}});
  EXPECT_NE(failure(R"({"type": "integer", "multipleOf": 123457})").find("at most 10000"), std::string::npos);
}

TEST(JsonSchema, ListsOfDifferentItems) {
  check({{R"({"type": "array", "uniqueItems": true, "items": {"enum": ["a", "b", "c"]}, "minItems": 1})",
          {R"(["b"])", R"(["c", "a"])", R"(["a","b","c"])"},
          {"[]", R"(["a", "a"])", R"(["b", "c", "b"])"}},
         {R"({"type": "array", "uniqueItems": true, "items": {"enum": [0,1,2,3,4,5,6,7,8,9]}, "maxItems": 3})",
          {"[]", "[3]", "[0, 5, 9]"},
          {"[3, 3]", "[0, 1, 2, 3]"}},
         {R"({"type": "array", "contains": {"const": 5}, "items": {"type": "integer"}})",
          {"[5]", "[5, 1]"},
          {"[]", "[1]"}},
         {R"({"type": "array", "contains": {"type": "string"}, "minContains": 2, "maxContains": 2})",
          {R"(["a", "b"])", R"(["a", "b", 1])"},
          {R"(["a"])", R"(["a", "b", "c"])"}},
         {R"({"allOf": [{"prefixItems": [{"type": "integer"}]}, {"items": {"maximum": 5, "type": "number"}}]})",
          {"[4]", "[5, 4.5]"},
          {"[4.9]", "[6]", "[1, 6]"}}});
}

TEST(JsonSchema, PatternsTogether) {
  check({{R"({"allOf": [{"pattern": "a"}, {"pattern": "b"}, {"pattern": "^[abc]*$"}], "type": "string", "maxLength": 4})",
          {R"("ab")", R"("cbca")"},
          {R"("a")", R"("abd")", R"("aabbc")"}},
         {R"({"type": "string", "format": "date", "pattern": "^2024"})", {R"("2024-02-29")"}, {R"("2023-01-01")"}},
         {R"x({"type": "string", "pattern": "(^a|^b)c($|d)"})x", {R"("ac")", R"("bcdx")"}, {R"("xac")", R"("acx")"}},
         {R"x({"type": "string", "pattern": "^(?!foo)(?=.*r$)[a-z]+$"})x", {R"("bar")"}, {R"("foor")", R"("ba")"}}});
}

TEST(JsonSchema, ReferencesByName) {
  check({{R"({"$id": "https://example.com/root.json", "$defs": {"x": {"$anchor": "here", "type": "null"}, "y": {"$id": "other.json",
              "type": "integer"}}, "prefixItems": [{"$ref": "#here"}, {"$ref": "other.json"}, {"$ref":
              "https://example.com/root.json#/$defs/y"}], "items": false})",
          {"[null, 1, 2]"},
          {"[1]", "[null, null]"}},
         {R"({"type": "number", "minimum": 3, "exclusiveMinimum": true})", {"3.1"}, {"3"}}});
}

TEST(JsonSchema, ThousandsOfProperties) {
  nlohmann::json schema = {{"type", "object"}};
  for (int i = 0; i < 5000; ++i) schema["properties"]["name" + std::to_string(i)] = {{"type", "integer"}};
  const auto grammar = AnswerGrammar::compile({.json_schema = schema.dump()});
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  EXPECT_TRUE(matches(grammar.value(), R"({"name0": 1, "name4999": 2})"));
  EXPECT_FALSE(matches(grammar.value(), R"({"name5000": 1})"));
}

TEST(JsonSchema, SaysWhatItRefuses) {
  EXPECT_EQ(failure(R"({"properties": {"a": {"items": {"multipleOf": 12345678}}}})").find("json_schema: properties.a.items: multipleOf"),
            0);
  EXPECT_NE(failure(R"x({"pattern": "a(?=b)"})x").find("pattern: a look-around"), std::string::npos);
  EXPECT_NE(failure(R"({"pattern": "(a)\\1"})").find("at character 5"), std::string::npos);
  for (const char* pattern :
       {"(", ")", "[a", "a**", "*", "\\\\b", "[b-a]", "^*", "a{2,1}", "a{99999}", "\\\\p{L}", "{"})
    EXPECT_NE(failure(R"({"pattern": ")" + std::string(pattern) + "\"}"), "") << pattern;
  EXPECT_EQ(failure(R"({"$ref": "https://example.com/x"})")
                .find("json_schema: $ref \"https://example.com/x\" leaves"),
            0);
  EXPECT_EQ(failure(R"({"$ref": "#/nothing"})"), "json_schema: $ref \"#/nothing\" points to nothing");
  EXPECT_EQ(failure(R"({"type": "integer", "minimum": 3, "maximum": 2})"),
            "json_schema: no JSON value satisfies the schema");
  EXPECT_EQ(failure(R"({"properties": {"a": {"$ref": "#"}}, "required": ["a"]})"),
            "json_schema: no JSON value satisfies the schema");
  EXPECT_EQ(failure("false"), "json_schema: no JSON value satisfies the schema");
  EXPECT_EQ(failure("{"), "json_schema: not valid JSON");
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

// Each ends at once, in a grammar or in one line.
TEST(JsonSchema, WithstandsHostileSchemas) {
  std::string deep;
  for (int i = 0; i < 10000; ++i) deep += R"({"items":)";
  EXPECT_NE(failure(deep), "");
  nlohmann::json product = {{"allOf", nlohmann::json::array()}};
  for (int i = 0; i < 10; ++i) {
    const auto one = [&](int j) { return nlohmann::json{{"required", {fmt::format("{} {}", i, j)}}}; };
    product["allOf"].push_back({{"anyOf", {one(1), one(2), one(3), one(4)}}});
  }
  EXPECT_NE(failure(product.dump()).find("multiply"), std::string::npos);
  EXPECT_EQ(failure(R"({"type": "array", "maxItems": 4000000000, "items": {"maxLength": 4000000000}})"), "");
  EXPECT_NE(failure(R"({"$ref": "#"})"), "");
  EXPECT_NE(failure(R"({"allOf": [{"$ref": "#"}]})"), "");
  EXPECT_NE(failure(R"({"anyOf": [{"$ref": "#"}]})"), "");
  EXPECT_NE(failure(R"({"not": {"$ref": "#"}})"), "");
}

// Patterns that have kept regular expression engines busy: taken, or refused in one line.
TEST(JsonSchema, WithstandsHostilePatterns) {
  for (const char* pattern :
       {"^(a+)+$", "^(a|aa)+$", "^(a|a?)+$", "(.*a){20}", "^(.*,){11}P", "(x+x+)+y", "(a?){500}a{500}", "^(.?){800}$",
        "^(?:(?:(?:a?)*)*)*$", "^.{0,10000}$", "^(.*){50}$", "(.{1,20}x){1,20}"})
    EXPECT_EQ(failure(nlohmann::json{{"pattern", pattern}}.dump()), "") << pattern;
  for (const char* pattern :
       {"((((a{1000}){1000}){1000}){1000}){1000}", "^(.{0,100}){0,100}$", "^(a|b)*a(a|b){20}$",
        "^[\\s\\S]{0,9999}x[\\s\\S]{0,9999}$", "^(a?b?c?d?e?f?g?h?){100}$"})
    EXPECT_NE(failure(nlohmann::json{{"pattern", pattern}}.dump()).find("pattern: "), std::string::npos) << pattern;
}

// What is written twice, or refers to the same, is looked at once.
TEST(JsonSchema, SharesWhatIsTheSame) {
  nlohmann::json doubling = {{"$ref", "#/$defs/0"}};
  for (int i = 0; i < 25; ++i) {
    const nlohmann::json next = {{"$ref", "#/$defs/" + std::to_string(i + 1)}}, titled = {{"title", "t"}, {"allOf", {next}}};
    doubling["$defs"][std::to_string(i)] = {{"allOf", {next, titled}}};
  }
  doubling["$defs"]["25"] = {{"type", "string"}};
  EXPECT_EQ(failure(doubling.dump()), "");
  const std::string doubled = doubling.dump();
  const auto document = SchemaDocument::parse(doubled, "s");
  ASSERT_TRUE(document.ok());
  SchemaContext context(*document.value());
  SchemaCases cases(context);
  const auto found = cases.of({&document.value()->root()});
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found.value().size(), 1u);
  EXPECT_LT(context.work().done, 10'000u);
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
