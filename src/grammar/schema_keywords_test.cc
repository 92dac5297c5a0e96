// Keywords beyond the common ones: what each takes and refuses.
#include <gtest/gtest.h>

#include "grammar/schema_test_cases.h"

namespace moesaic::grammar {
namespace {

TEST(SchemaKeywords, PatternProperties) {
  check(
      {{R"({"patternProperties": {"^a": {"type": "integer"}, "b$": {"type": "boolean"}}})",
        {"{}", R"({"a": 1})", R"({"xb": true})", R"({"a1": 1, "b": false, "a2": 2})"},
        {R"({"a": true})", R"({"b": 1})", R"({"ab": 1})", R"({"ab": true})", R"({"x": 1})",
         R"({"\u0061": true})"}},
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
            "json_schema: no JSON value satisfies the schema, as far as it can be followed");
}

TEST(SchemaKeywords, RequiredNamesOnly) {
  check({{R"({"properties": {"a": {"type": "integer"}}, "required": ["b"]})",
          {R"({"a": 1, "b": []})", R"({"b": "x"})"},
          {"{}", R"({"a": 1})", R"({"b": 1, "c": 1})"}},
         {R"({"additionalProperties": {"type": "null"}, "required": ["b"]})",
          {R"({"b": null})"},
          {R"({"b": 1})"}}});
  EXPECT_EQ(failure(R"({"properties": {"a": {}}, "additionalProperties": false, "required": ["b"]})"),
            "json_schema: no JSON value satisfies the schema, as far as it can be followed");
}

TEST(SchemaKeywords, NumbersOfProperties) {
  check(
      {{R"({"properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2})",
        {R"({"a": 1, "b": 2})", R"({"a": 1, "c": 2})", R"({"a": 1, "b": 2, "c": 3})"},
        {"{}", R"({"a": 1})", R"({"c": 1})"}},
       {R"({"properties": {"a": {}, "b": {}, "c": {}}, "maxProperties": 1})",
        {"{}", R"({"a": 1})", R"({"c": 1})"},
        {R"({"a": 1, "b": 1})", R"({"b": 1, "c": 1})"}},
       {R"({"properties": {"a": {}}, "additionalProperties": true, "minProperties": 2, "maxProperties": 3})",
        {R"({"a": 1, "x": 2})", R"({"a": 1, "x": 2, "y": 3})"},
        {R"({"a": 1})", R"({"x": 1, "x": 2})", R"({"a": 1, "x": 2, "y": 3, "z": 4})"}}});
}

TEST(SchemaKeywords, Not) {
  check(
      {{R"({"not": {"type": ["string", "object", "array"]}})", {"1", "true", "null"}, {R"("a")", "{}", "[]"}},
       {R"({"type": "string", "not": {"enum": ["a", "ab"]}})",
        {R"("")", R"("b")", R"("abc")"},
        {R"("a")", R"("ab")"}},
       {R"({"type": "string", "not": {"pattern": "b"}, "maxLength": 3})",
        {R"("aca")"},
        {R"("abc")", R"("aaaa")"}},
       {R"({"type": "integer", "minimum": 1, "maximum": 4, "not": {"const": 3}})",
        {"1", "2", "4"},
        {"3", "0", "5"}},
       {R"({"type": "object", "not": {"required": ["a"]}})", {"{}", R"({"b": 1})"}, {R"({"a": 1})"}},
       {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "not": {"required": ["a", "b"]}})",
        {"{}", R"({"a": 1})", R"({"b": 1})"},
        {R"({"a": 1, "b": 1})"}},
       {R"({"type": "array", "not": {"minItems": 2}})", {"[]", "[1]"}, {"[1, 2]"}},
       {R"({"not": {"not": {"type": "null"}}})", {"null"}, {"1"}}});
  EXPECT_EQ(failure(R"({"not": {}})"),
            "json_schema: no JSON value satisfies the schema, as far as it can be followed");
  EXPECT_EQ(failure(R"({"not": {"uniqueItems": true}})"),
            "json_schema: not: such a schema cannot be excluded");
  EXPECT_EQ(failure(R"({"not": {"prefixItems": [{"type": "null"}]}})"),
            "json_schema: not: such a schema cannot be excluded");
}

TEST(SchemaKeywords, OneOfHoldsOnce) {
  check(
      {{R"({"oneOf": [{"type": "number", "minimum": 3}, {"type": "integer", "maximum": 5}]})",
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
        {R"("ab")", R"("c")"}},
       // Values of which neither member speaks satisfy both.
       {R"({"type": ["object", "string", "null"], "oneOf": [{"properties": {"a": {"const": 1}}, "required": ["a"]},
                          {"properties": {"a": {"const": 2}}, "required": ["a"]}]})",
        {R"({"a": 1})", R"({"a": 2})"},
        {"null", R"("")", R"({"a": 3})"},
        ""},
       {R"({"type": ["string", "integer"], "oneOf": [{"minimum": 3}, {"maximum": 1}, {"type": "boolean"}]})",
        {"3", "1"},
        {"2", R"("")"},
        ""},
       {R"({"properties": {"a": {"type": ["string", "null"]}}, "required": ["a"], "type": "object", "oneOf": [
                          {"properties": {"a": {"minLength": 2}}}, {"properties": {"a": {"maxLength": 0}}}]})",
        {R"({"a": "xx"})", R"({"a": ""})"},
        {R"({"a": null})", R"({"a": "x"})"},
        ""},
       {R"({"type": "object", "properties": {"a": {"type": ["string", "null"]}}, "oneOf": [
                          {"properties": {"a": {"minLength": 2}}, "required": ["a"]},
                          {"properties": {"a": {"maxLength": 0}}, "required": ["a"]}]})",
        {R"({"a": "xx"})", R"({"a": ""})"},
        {R"({"a": null})", R"({"a": "x"})", "{}"},
        ""}});
  EXPECT_EQ(failure(R"({"oneOf": [true, true]})"),
            "json_schema: no JSON value satisfies the schema, as far as it can be followed");
}

// A member is left whole where what the others exclude of it is known in part only, and that part is all of
// it.
TEST(SchemaKeywords, OneOfWithUnknownExclusions) {
  const char* as_any = "oneOf is taken as anyOf where its members cannot be told apart";
  for (const auto& [schema, value] : std::vector<std::pair<const char*, const char*>>{
           {R"({"oneOf": [{"type": "integer", "multipleOf": 2}, {"type": "integer", "multipleOf": 3}]})",
            "4"},
           {R"({"oneOf": [{"type": "string", "format": "date"}, {"type": "string", "format": "ipv4"}]})",
            R"("1.2.3.4")"},
           {
               R"({"type": "object", "properties": {"a": {"oneOf": [{"type": "number", "multipleOf": 0.5},
                {"type": "number", "multipleOf": 0.2}]}}, "required": ["a"]})",
               R"({"a": 0.5})"}}) {
    const auto grammar = AnswerGrammar::compile({.json_schema = schema});
    ASSERT_TRUE(grammar.ok()) << schema << grammar.status().message();
    EXPECT_TRUE(matches(grammar.value(), value)) << schema;
    EXPECT_EQ(grammar.value().notes(), std::vector<std::string>{as_any}) << schema;
  }
  // Schemas that are known whole stay enforced, and equal members never hold once.
  for (const char* schema : {R"({"oneOf": [{"properties": {"a": {"type": "integer"}}, "type": "object"},
                                           {"properties": {"a": {"minimum": 3, "type": "number"}}, "type": "object"}]})",
                             R"({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]})",
                             R"({"oneOf": [{"type": "integer"}, {"type": "integer", "minimum": 3}]})"}) {
    const auto grammar = AnswerGrammar::compile({.json_schema = schema});
    ASSERT_TRUE(grammar.ok()) << schema;
    EXPECT_TRUE(grammar.value().notes().empty()) << schema;
  }
  EXPECT_EQ(
      failure(R"({"oneOf": [{"multipleOf": 2, "type": "integer"}, {"multipleOf": 2, "type": "integer"}]})"),
      "json_schema: no JSON value satisfies the schema, as far as it can be followed");
}

// A negation that is known in part is used with a note, or not at all; one that is known is exact.
TEST(SchemaKeywords, NegationsInPart) {
  const char* any_else =
      "a value that meets an if may follow else instead of then, where the condition cannot be excluded";
  const char* as_any = "oneOf is taken as anyOf where its members cannot be told apart";
  const char* more = "not excludes more values than it says, where these cannot be told apart";
  check(
      {{R"({"properties": {"n": {"type": "integer"}, "odd": {"type": "boolean"}}, "required": ["n", "odd"],
            "if": {"properties": {"n": {"multipleOf": 2}}}, "then": {"properties": {"odd": {"const": false}}},
            "else": {"properties": {"odd": {"const": true}}}})",
        {R"({"n": 3, "odd": true})", R"({"n": 2, "odd": false})"},
        {R"({"n": 3, "odd": 1})"},
        any_else},
       {R"({"type": "string", "if": {"format": "date"}, "then": {"maxLength": 3}, "else": {"minLength": 2}})",
        {R"("ab")", R"("2024-02-29")"},
        {R"("a")"},
        any_else},
       {R"({"type": "object", "if": {"patternProperties": {"^a": {"type": "null"}}}, "else": {"required": ["a"]}})",
        {R"({"a": null})", R"({"a": 1})"},
        {},
        any_else},
       {R"({"type": "array", "if": {"enum": [[1], "a"]}, "then": false, "else": {"maxItems": 1}})",
        {"[2]", "[]"},
        {"[1, 2]"},
        any_else},
       {R"({"type": "array", "if": {"uniqueItems": true}, "then": {"maxItems": 1}, "else": {"minItems": 3}})",
        {"[1]", "[1, 1, 1]"},
        {"[1, 1]"}},
       {R"({"type": "array", "if": {"contains": {"const": 1}, "maxContains": 1}, "else": {"maxItems": 2}})",
        {"[1]", "[1, 1]", "[2]"},
        {},
        any_else},
       // Everything that is no integer is known. A keyword that says nothing makes no negation partial.
       {R"({"type": "number", "if": {"type": "integer"}, "then": {"minimum": 5}, "else": {"maximum": 3}})",
        {"2.5", "6", "-0.25", "1.50"},
        {"2", "3.5", "2.0", "5.5"},
        ""},
       {R"({"type": "number", "multipleOf": 0.5, "not": {"type": "integer"}})",
        {"0.5"},
        {"1", "1.0", "0.7"},
        ""},
       {R"({"not": {"type": "string", "nullable": true}})", {"1", "2.5"}, {"null", R"("a")"}, ""},
       {R"({"if": {"type": "object", "additionalProperties": true, "uniqueItems": false}, "then": {"required": ["a"]}})",
        {"1", R"({"a": 1})"},
        {"{}"},
        ""},
       {R"({"not": {"type": "integer", "multipleOf": 2}})", {"2.5", R"("a")"}, {"2"}, more},
       {R"({"type": ["array", "null"], "not": {"const": [1]}})", {"null"}, {"[1]"}, more},
       {R"({"type": "string", "oneOf": [{"format": "date", "maxLength": 9}, {"minLength": 2}]})",
        {R"("ab")"},
        {},
        as_any},
       {R"({"type": "integer", "oneOf": [{"minimum": 3}, {"multipleOf": 2, "maximum": 9}]})",
        {"3", "5", "11", "2"},
        {"1"},
        as_any},
       {R"({"type": "integer", "minimum": 0, "maximum": 9, "oneOf": [{"minimum": 3},
            {"if": {"oneOf": [{"maximum": 5}, {"minimum": 2}]}, "then": {}, "else": false}]})",
        {"0", "1", "3", "4", "5"},
        {"2", "6", "9"},
        ""},
       // Lists without items contain nothing, not even what is free.
       {R"({"type": "array", "not": {"contains": {}}})", {"[]"}, {"[1]"}, ""},
       {R"({"type": "array", "if": {"contains": true}, "then": {"minItems": 2}, "else": true})",
        {"[]", "[1, 2]"},
        {"[1]"},
        ""},
       {R"({"type": "array", "items": {"type": "integer"}, "oneOf": [{"contains": {}}, {"maxItems": 3}]})",
        {"[]", "[1, 1, 1, 1]"},
        {"[1]"},
        ""},
       {R"({"type": "array", "if": {"items": {"type": "integer"}, "prefixItems": [], "additionalItems": false},
            "then": {"minItems": 2}})",
        {R"(["a"])", "[1, 1]"},
        {"[1]"},
        ""},
       {R"({"not": {"additionalProperties": false}})", {R"({"a": 1})"}, {"{}", "1"}, ""},
       {R"({"type": "object", "if": {"not": {"additionalProperties": false}}, "then": {"required": ["a"]}})",
        {"{}", R"({"a": 1})", R"({"a": 1, "b": 2})"},
        {R"({"b": 1})"},
        ""},
       // A way of which nothing is known is left out.
       {R"({"type": "object", "if": {"not": {"patternProperties": {"^x": false}}}, "then": {"required": ["a"]}})",
        {"{}"},
        {R"({"x": 1})"},
        more},
       {R"({"anyOf": [{"type": "string"}, {"type": "array", "not": {"prefixItems": [{}, {"minimum": 1}]}}]})",
        {R"("a")"},
        {"[1]"},
        more},
       // Properties that the other member cannot have need not be told apart.
       {R"({"oneOf": [{"properties": {"a": {"properties": {"x": {}}, "additionalProperties": false}, "c": {}},
                       "type": "object", "additionalProperties": false},
                      {"properties": {"b": {"properties": {"x": {}}, "additionalProperties": false}, "c": {}},
                       "type": "object", "additionalProperties": false}]})",
        {R"({"a": {}})", R"({"b": {}, "c": 1})"},
        {"{}", R"({"c": 1})"},
        ""},
       {R"({"oneOf": [{"properties": {"a": {"multipleOf": 2}, "b": {}}, "type": "object", "additionalProperties": false},
                      {"properties": {"a": {}}, "type": "object", "additionalProperties": false}]})",
        {R"({"a": 3})"},
        {},
        as_any}});
  EXPECT_EQ(failure(R"({"type": "array", "oneOf": [{}, {"if": {"oneOf": [{}, {}]}, "then": {}}]})"),
            "json_schema: no JSON value satisfies the schema, as far as it can be followed");
}

// The pairs of the excluded oneOfs are too many cases: the values that satisfy no member remain.
TEST(SchemaKeywords, NegatedOneOfsThatMultiply) {
  const auto all_of = [](int count, int members, const char* begin, const char* end) {
    std::string all = R"({"type": "object", "allOf": [)";
    for (int i = 0; i < count; ++i) {
      all += std::string(i > 0 ? ", " : "") + begin + R"({"oneOf": [)";
      for (int j = 0; j < members; ++j)
        all +=
            (j > 0 ? R"(, {"required": ["p)" : R"({"required": ["p)") + std::to_string(10 * i + j) + "\"]}";
      all += std::string("]}") + end;
    }
    return all + "]}";
  };
  const char* then = R"(, "then": {"required": ["q"]}})";
  check({{all_of(1, 8, R"({"not": )", "}"), {"{}", R"({"p0": 1, "p1": 1})"}, {R"({"p0": 1})"}, ""},
         {all_of(3, 8, R"({"not": )", "}"),
          {"{}", R"({"q": 1})"},
          {R"({"p0": 1})", R"({"p27": 1})"},
          "not excludes more values than it says, where these cannot be told apart"},
         {all_of(4, 3, R"({"if": )", then), {"{}", R"({"p0": 1, "q": 1})"}, {}},
         {all_of(5, 2, R"({"if": )", then), {"{}", R"({"p0": 1, "q": 1})"}, {}}});
}

// Each value is decided, whatever can be said of those that there are not.
TEST(SchemaKeywords, NegationsBesideValues) {
  check(
      {{R"({"enum": [1, 2.5, "a"], "not": {"type": "integer"}})", {"2.5", R"("a")"}, {"1"}, ""},
       {R"({"enum": [1, 2, 3], "not": {"multipleOf": 2}})", {"1", "3"}, {"2"}, ""},
       {R"({"anyOf": [{"const": "2024-02-29"}, {"enum": ["x", [1], [2]]}], "not": {"anyOf": [{"format": "date",
              "type": "string"}, {"const": [1]}]}})",
        {R"("x")", "[2]"},
        {R"("2024-02-29")", "[1]"},
        ""},
       {R"({"enum": [1, 2, 3, 4, 6], "oneOf": [{"multipleOf": 2}, {"multipleOf": 3}]})",
        {"2", "3", "4"},
        {"1", "6"},
        ""},
       {R"({"properties": {"a": {"enum": [4, 5]}}, "required": ["a"], "additionalProperties": false,
              "allOf": [{"properties": {"a": {"if": {"multipleOf": 2}, "then": false}}}]})",
        {R"({"a": 5})"},
        {R"({"a": 4})"},
        ""},
       {R"({"enum": ["x"], "anyOf": [{"frmt": "y"}, {"maxLength": 0, "allOf": [{"format": "z"}]}]})",
        {R"("x")"},
        {},
        "the format \"z\" is ignored\nthe unknown keyword frmt is ignored"},
       // The enum is asked again of what is inside its values.
       {R"({"enum": [[1], [], [[]]], "items": {"$ref": "#"}})", {"[]", "[[]]"}, {"[1]"}, ""}});
  EXPECT_EQ(failure(R"({"anyOf": [{"enum": [1]}, {"type": "integer"}], "not": {"multipleOf": 2}})"),
            "json_schema: not: such a schema cannot be excluded");
}

TEST(SchemaKeywords, Conditions) {
  check(
      {{R"({"type": "object", "properties": {"kind": {"enum": ["a", "b"]}, "x": {"type": "integer"}},
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

TEST(SchemaKeywords, MultipleOf) {
  check(
      {{R"({"type": "integer", "multipleOf": 7})", {"0", "7", "-49", "700000"}, {"1", "6", "50", "-1"}},
       {R"({"type": "integer", "multipleOf": 5, "minimum": 3, "maximum": 21})",
        {"5", "20"},
        {"0", "3", "25"}},
       {R"({"type": "number", "multipleOf": 0.25})", {"0.5", "1", "3.75", "-2.50"}, {"0.3", "1.01", "0.125"}},
       {R"({"type": "number", "multipleOf": 0.01, "exclusiveMinimum": 0})", {"0.01", "12.3"}, {"0", "0.001"}},
       {R"({"type": "number", "allOf": [{"multipleOf": 4}, {"multipleOf": 6}]})",
        {"12", "24"},
        {"4", "6", "18"}},
       {R"({"type": "integer", "multipleOf": 500})",
        {"0", "500", "-1500", "123456789012345500"},
        {"1", "250"}},
       {R"({"type": "number", "multipleOf": 1000})", {"7000", "-1000"}, {"100", "1000.5"}},
       {R"({"type": "integer", "multipleOf": 4096, "minimum": -5000, "maximum": 10000})",
        {"-4096", "0", "8192"},
        {"-8192", "12288", "96"}},
       {R"({"type": "integer", "multipleOf": 9999})", {"9999", "-19998", "989901"}, {"999", "10000"}},
       {R"({"type": "number", "multipleOf": 10000})", {"10000", "-990000"}, {"1000"}}});
  EXPECT_NE(failure(R"({"type": "integer", "multipleOf": 123457})").find("at most 10000"), std::string::npos);
}

TEST(SchemaKeywords, ListsOfDifferentItems) {
  check(
      {{R"({"type": "array", "uniqueItems": true, "items": {"enum": ["a", "b", "c"]}, "minItems": 1})",
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

TEST(SchemaKeywords, PatternsTogether) {
  check(
      {{R"({"allOf": [{"pattern": "a"}, {"pattern": "b"}, {"pattern": "^[abc]*$"}], "type": "string", "maxLength": 4})",
        {R"("ab")", R"("cbca")"},
        {R"("a")", R"("abd")", R"("aabbc")"}},
       {R"({"type": "string", "format": "date", "pattern": "^2024"})",
        {R"("2024-02-29")"},
        {R"("2023-01-01")"}},
       {R"x({"type": "string", "pattern": "(^a|^b)c($|d)"})x",
        {R"("ac")", R"("bcdx")"},
        {R"("xac")", R"("acx")"}},
       // pydantic's for a decimal number of four digits, whose integers have no $, and with one
       {R"x({"type": "string", "pattern":
             "^(?!^[-+.]*$)[+-]?0*(?:\\d{0,2}|(?=[\\d.]{1,5}0*$)\\d{0,2}\\.\\d{0,2}0*$)"})x",
        {R"("12")", R"("-0012.340")", R"("123")"},
        {R"("")", R"("-")", R"("+.")"}},
       {R"x({"type": "string", "pattern":
             "^(?!^[-+.]*$)[+-]?0*(?:\\d{0,2}|(?=[\\d.]{1,5}0*$)\\d{0,2}\\.\\d{0,2}0*$)$"})x",
        {R"("12")", R"("-0012.340")", R"(".5")", R"("1.")"},
        {R"("")", R"("-")", R"("123")", R"("1.234")", R"("+.")", R"("1a")"}},
       // zod's for a duration
       {R"x({"type": "string", "pattern":
             "^P(?:(\\d+W)|(?!.*W)(?=\\d|T\\d)(\\d+Y)?(\\d+M)?(\\d+D)?(T(?=\\d)(\\d+H)?(\\d+M)?(\\d+([.,]\\d+)?S)?)?)$"})x",
        {R"("P2W")", R"("P1Y2D")", R"("PT3M1.5S")"},
        {R"("P")", R"("P1DT")", R"("PT")", R"("P1Y2W")"}},
       {R"x({"type": "string", "pattern": "(?!b)[a-d](?!c|$)(?:(?=c)|d)"})x",
        {R"("bcadx")", R"("bbdd")", R"("ad")"},
        {R"("a")", R"("bd")", R"("ac")", R"("cc")"}},
       {R"x({"type": "string", "pattern": "^(?!foo)(?=.*r$)[a-z]+$"})x",
        {R"("bar")"},
        {R"("foor")", R"("ba")"}}});
}

// Go writes a list that is nil so. Values, and members that are called like a keyword, stay.
TEST(SchemaKeywords, NullIsAbsent) {
  std::string nulls = "{";
  for (const char* key : {"type",
                          "required",
                          "properties",
                          "additionalProperties",
                          "anyOf",
                          "allOf",
                          "oneOf",
                          "not",
                          "if",
                          "items",
                          "prefixItems",
                          "enum",
                          "pattern",
                          "format",
                          "minLength",
                          "maximum",
                          "multipleOf",
                          "minItems",
                          "uniqueItems",
                          "contains",
                          "$ref",
                          "$defs",
                          "$id",
                          "$anchor",
                          "patternProperties",
                          "propertyNames",
                          "minProperties",
                          "dependentRequired",
                          "unevaluatedProperties",
                          "nullable",
                          "title",
                          "description",
                          "default",
                          "examples"})
    nulls += std::string(nulls.size() > 1 ? ", " : "") + "\"" + key + "\": null";
  nulls += '}';
  check(
      {{nulls, {"1", "null", R"({"a": []})"}, {"x"}},
       {R"({"properties": {"a": {"type": "integer", "enum": null}}, "type": "object", "required": null})",
        {R"({"a": 1})", "{}"},
        {R"({"a": "b"})"}},
       {R"({"anyOf": [{"type": "integer", "minimum": null}, {"type": "null", "required": null}]})",
        {"1", "null"},
        {"true"}},
       {R"({"$defs": {"x": {"type": "boolean", "const": null, "enum": [null]}, "y": {"const": null}},
              "$ref": "#/$defs/y"})",
        {"null"},
        {"true"}},
       {R"({"type": "object", "properties": {"enum": {"const": null}, "default": {"type": "null", "title": null}}})",
        {R"({"enum": null, "default": null})"},
        {R"({"enum": 1})"}},
       {R"({"enum": [null, 1]})", {"null", "1"}, {"2"}}});
  EXPECT_NE(failure(R"({"properties": {"a": null}})"), "");
}

// As pydantic writes a union whose discriminator has a default.
TEST(SchemaKeywords, DiscriminatorsAreThere) {
  check(
      {{R"({"$defs": {"A": {"properties": {"kind": {"const": "a", "default": "a"}, "x": {"type": "integer"}}},
              "B": {"properties": {"kind": {"const": "b", "default": "b"}, "y": {"type": "integer"}}}},
              "discriminator": {"propertyName": "kind"}, "oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}]})",
        {R"({"kind": "a", "x": 1})", R"({"kind": "b"})"},
        {"{}", R"({"x": 1})", R"({"kind": "a", "y": 1})"},
        ""},
       {R"({"discriminator": {"propertyName": "kind"}, "anyOf": [{"properties": {"x": {}}}, {"properties": {"kind": {}}}]})",
        {R"({"x": 1})", "{}"},
        {},
        ""}});
}

TEST(SchemaKeywords, ReferencesByName) {
  check(
      {{R"({"$id": "https://example.com/root.json", "$defs": {"x": {"$anchor": "here", "type": "null"}, "y": {"$id": "other.json",
              "type": "integer"}}, "prefixItems": [{"$ref": "#here"}, {"$ref": "other.json"}, {"$ref":
              "https://example.com/root.json#/$defs/y"}], "items": false})",
        {"[null, 1, 2]"},
        {"[1]", "[null, null]"}},
       {R"({"type": "number", "minimum": 3, "exclusiveMinimum": true})", {"3.1"}, {"3"}},
       // From the next $id above; from the root where that leads nowhere.
       {R"({"properties": {"tree": {"$id": "t", "type": "object", "properties": {"kids": {"items": {"$ref": "#"}}, "leaf":
              {"$ref": "#/$defs/leaf"}, "name": {"$ref": "#/$defs/name"}, "more": {"$ref": "leaf.json"}},
              "$defs": {"leaf": {"type": "integer"}, "l": {"$id": "leaf.json", "type": "null"}}}},
              "$defs": {"leaf": {"type": "string"}, "name": {"type": "boolean"}}})",
        {R"({"tree": {"kids": [{"kids": []}], "leaf": 1, "name": true, "more": null}})"},
        {R"({"tree": {"kids": [{"tree": {}}]}})", R"({"tree": {"leaf": ""}})"},
        ""},
       // A property may have a keyword's name.
       {R"({"properties": {"default": {"$anchor": "here", "type": "integer"}, "b": {"$ref": "#here"}}})",
        {R"({"b": 1})"},
        {R"({"b": ""})"},
        ""}});
}

}  // namespace
}  // namespace moesaic::grammar
