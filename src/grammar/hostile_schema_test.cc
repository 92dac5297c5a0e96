// Schemas that are made to cost much: each is taken or refused within a bound of steps.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>
#include <stop_token>

#include "grammar/interned_lists.h"
#include "grammar/json_schema.h"
#include "grammar/regex.h"
#include "grammar/schema_cases.h"
#include "grammar/schema_test_cases.h"

namespace moesaic::grammar {
namespace {

using Ordered = nlohmann::ordered_json;

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

struct Outcome {
  std::string failure;
  uint64_t work = 0;
  double seconds = 0;
};

Outcome outcome(const AnswerFormat& format, const std::stop_token& cancel = {}) {
  Automaton automaton;
  JsonRules rules(automaton);
  std::vector<std::string> notes;
  Work work(cancel);
  const double start = cpu_seconds();
  const auto rule = format.regex.empty() ? schema_rule(automaton, rules, format.json_schema, "s", notes, work)
                                         : regex_rule(automaton, format.regex, "s", work);
  return {rule.status().message(), work.done(), cpu_seconds() - start};
}

std::string repeated(int times, const std::function<std::string(int)>& text) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text(i);
  return all;
}

Ordered list(int size, const std::function<Ordered(int)>& member) {
  Ordered all = Ordered::array();
  for (int i = 0; i < size; ++i) all.push_back(member(i));
  return all;
}

// Every other character, so that each is a range of its own.
std::string singles(int count) {
  return "[" +
         repeated(count,
                  [](int i) {
                    char32_t c = 0x400 + 2 * static_cast<char32_t>(i);
                    return utf8_of({&c, 1});
                  }) +
         "]";
}

struct Row {
  const char* name;
  AnswerFormat format;
};

// Each takes seconds, or gigabytes, where a loop does not count its work.
std::vector<Row> costly_rows() {
  const auto schema = [](const Ordered& s) { return AnswerFormat{.json_schema = s.dump()}; };
  const Ordered free = Ordered::object();
  const auto names = [](int count) {
    Ordered properties = Ordered::object();
    for (int i = 0; i < count; ++i) properties[fmt::format("p{}", i)] = true;
    return properties;
  };
  const std::string big(900'000, 'b');
  std::vector<Row> rows;
  rows.push_back({"many copies of a large set", {.regex = "(" + singles(15'000) + "{9000}x){5}"}});
  rows.push_back(
      {"empty parts", {.regex = "((" + repeated(12'000, [](int) { return "a{0}"; }) + "){10000}){10000}"}});
  rows.push_back(
      {"look-ahead", schema({{"pattern", "^" + repeated(5'000, [](int) { return "(?!a{9999})"; })}})});
  const std::string pairs = repeated(4'500, [](int i) {
    const std::u32string twice(2, 0x100 + static_cast<char32_t>(i));
    return utf8_of(twice) + "|";
  });
  rows.push_back({"characters against characters", {.regex = "a(?=" + pairs + "a)(?=" + pairs + "a).*"}});
  rows.push_back({"patterns that fail",
                  schema({{"anyOf", list(900, [](int i) -> Ordered {
                             return {
                                 {"enum", {"x"}},
                                 {"pattern", fmt::format("{}(a|b){{10000}}(a|c){{10000}}(a|d){{10000}}", i)}};
                           })}})});
  rows.push_back(
      {"unevaluatedItems", schema({{"prefixItems", list(9'000, [](int) { return Ordered(true); })},
                                   {"allOf", list(400, [&](int i) -> Ordered {
                                      return {{"title", i}, {"unevaluatedItems", {{"minLength", i}}}};
                                    })}})});
  rows.push_back({"unevaluatedProperties", schema({{"properties", names(1'000)},
                                                   {"allOf", list(1'000, [&](int i) -> Ordered {
                                                      return {{"unevaluatedProperties", {{"minLength", i}}}};
                                                    })}})});
  rows.push_back({"factors", schema({{"type", "number"},
                                     {"allOf", list(9'900,
                                                    [](int i) {
                                                      return Ordered{{"multipleOf", i + 1}};
                                                    })},
                                     {"anyOf", list(300, [](int i) {
                                        return Ordered{{"minimum", i}};
                                      })}})});
  rows.push_back({"a text for each case", schema({{"enum", {big}}, {"anyOf", list(900, [](int i) {
                                                                      return Ordered{{"minLength", i}};
                                                                    })}})});
  rows.push_back(
      {"a constant for each case",
       schema(
           {{"const", big},
            {"allOf", list(3, [&](int a) {
               return Ordered{{"anyOf", list(20, [&](int b) { return Ordered{{"minLength", 20 * a + b}}; })}};
             })}})});
  rows.push_back({"values for each case", schema({{"enum", {list(150'000, [](int) { return Ordered(0); })}},
                                                  {"anyOf", list(900, [](int i) -> Ordered {
                                                     return {{"title", i}, {"items", true}, {"maxItems", i}};
                                                   })}})});
  rows.push_back({"names against names",
                  schema({{"required", list(9'900, [](int i) { return Ordered(fmt::format("r{}", i)); })},
                          {kAbsent, list(9'900, [](int i) { return Ordered(fmt::format("n{}", i)); })}})});
  rows.push_back({"names with maxProperties", schema({{"properties",
                                                       [&] {
                                                         Ordered all = names(4'000);
                                                         all[std::string(800'000, 'n')] = true;
                                                         return all;
                                                       }()},
                                                      {"maxProperties", 3'999}})});
  rows.push_back({"enums without others",
                  schema({{"$defs", {{"e", {{"enum", list(50'000, [](int i) { return Ordered(i); })}}}}},
                          {"allOf", list(5'000, [](int i) -> Ordered {
                             return {{"not", {{"$ref", "#/$defs/e"}, {"title", std::to_string(i)}}}};
                           })}})});
  rows.push_back(
      {"values beside each other's choices",
       schema({{"enum", list(50'000, [](int i) { return Ordered(i); })},
               {"allOf", list(9, [](int a) -> Ordered {
                  return {{"anyOf", list(100, [a](int b) { return Ordered{{"minimum", a + b}}; })}};
                })}})});
  Ordered wide = {{"type", "object"}, {"properties", names(9'000)}};
  for (int i = 0; i < 9'000; ++i) wide[fmt::format("x{}", i)] = free;
  rows.push_back({"unknown keywords", schema(wide)});
  return rows;
}

// Refused, for their work or their states, after hardly more work than there may be.
TEST(HostileSchema, CountsItsWork) {
  for (const auto& [name, format] : costly_rows()) {
    const Outcome o = outcome(format);
    const bool usual =
        std::ranges::any_of(std::array{"too much work", "too many ways", "over 200000 states",
                                       "over 50000 states", "alternatives"},
                            [&](const char* line) { return o.failure.find(line) != std::string::npos; });
    EXPECT_TRUE(usual) << name << ": " << o.failure;
    EXPECT_LE(o.work, Work::kLimit + Work::kLimit / 2) << name;
    EXPECT_LE(o.seconds, 5) << name;
  }
}

// The same token that Work's limit asks for is asked in every loop: none goes on without the client.
TEST(HostileSchema, EndsWithItsClient) {
  std::stop_source left;
  left.request_stop();
  for (const auto& [name, format] : costly_rows()) {
    const Outcome o = outcome(format, left.get_token());
    EXPECT_LE(o.work, Work::kLimit / 3) << name;
  }
}

// Names that each hold the one above.
TEST(HostileSchema, NamesAreNoLongerThanTheyNeed) {
  const std::string far = "http://" + std::string(300'000, 'a') + "/";
  for (const Ordered& one : {Ordered::array(), Ordered{{"$id", "b"}}, Ordered{{"$anchor", "b"}}}) {
    const Ordered schema = {{"$id", far}, {"x", list(40'000, [&](int) { return one; })}};
    const Outcome o = outcome({.json_schema = schema.dump()});
    EXPECT_EQ(o.failure.find("over 16777216 bytes") != std::string::npos, !one.is_array()) << o.failure;
    EXPECT_LE(o.seconds, 5);
  }
  const Ordered references = list(40'000, [](int) { return Ordered{{"$ref", "#"}}; });
  const Outcome below = outcome({.json_schema = Ordered{{"y", {{"$id", far}, {"x", references}}}}.dump()});
  EXPECT_NE(below.failure.find("over 16777216 bytes"), std::string::npos) << below.failure;
  EXPECT_LE(below.seconds, 5);
  Ordered pointer = {{"$ref", "#/" + repeated(300'000, [](int) { return "~0"; })}};
  EXPECT_NE(outcome({.json_schema = pointer.dump()}).failure.find("points to nothing"), std::string::npos);
}

// Values of any shape where a keyword has another one: each way to look at it ends in a grammar or in one
// line.
TEST(HostileSchema, KeywordsOfAnyShape) {
  std::vector<std::string> keywords = {kLink, kAbsent, kDiffers, kNotPattern, kRewritten};
  for (const char* keyword : {"type",
                              "enum",
                              "const",
                              "nullable",
                              "properties",
                              "required",
                              "additionalProperties",
                              "patternProperties",
                              "propertyNames",
                              "unevaluatedProperties",
                              "minProperties",
                              "maxProperties",
                              "items",
                              "prefixItems",
                              "additionalItems",
                              "unevaluatedItems",
                              "minItems",
                              "maxItems",
                              "contains",
                              "minContains",
                              "maxContains",
                              "uniqueItems",
                              "minLength",
                              "maxLength",
                              "pattern",
                              "format",
                              "minimum",
                              "maximum",
                              "exclusiveMinimum",
                              "exclusiveMaximum",
                              "multipleOf",
                              "$ref",
                              "$dynamicRef",
                              "$recursiveRef",
                              "$id",
                              "$anchor",
                              "$dynamicAnchor",
                              "$defs",
                              "allOf",
                              "anyOf",
                              "oneOf",
                              "not",
                              "if",
                              "then",
                              "else",
                              "dependentRequired",
                              "dependentSchemas",
                              "dependencies"})
    keywords.emplace_back(keyword);
  const Ordered shapes = {5,   "x",   Ordered::array(),        Ordered::object(),     true, nullptr,
                          {1}, {"b"}, {{"b", 1}, {"c", true}}, {Ordered::object(), 5}};
  const Ordered value = {{{"a", {{"b", 1}}}}, {{"a", {1, "b"}}}, {{"a", "b"}}, {{"a", 1}}};
  for (const std::string& keyword : keywords)
    for (const Ordered& shape : shapes) {
      const Ordered one = {{keyword, shape}},
                    closed = {{keyword, shape}, {"additionalProperties", false}, {"prefixItems", {true}}};
      for (const Ordered& schema :
           {one, Ordered{{"enum", value}, {"properties", {{"a", one}}}}, Ordered{{"not", one}},
            Ordered{{"enum", value}, {"properties", {{"a", closed}}}}, Ordered{{"propertyNames", one}},
            Ordered{{"type", "object"}, {"required", {"a"}}, {"properties", {{"a", one}}}},
            Ordered{{"oneOf", {one, {{"type", "string"}}}}}, Ordered{{"contains", one}},
            Ordered{{"uniqueItems", true}, {"items", {{"enum", value}, {"allOf", {one}}}}}})
        EXPECT_NO_THROW(EXPECT_EQ(failure(schema.dump()).find('\n'), std::string::npos)) << schema.dump();
    }
}

// Each ends at once, in a grammar or in one line.
TEST(HostileSchema, WithstandsHostileSchemas) {
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
TEST(HostileSchema, WithstandsHostilePatterns) {
  for (const char* pattern :
       {"^(a+)+$", "^(a|aa)+$", "^(a|a?)+$", "(.*a){20}", "^(.*,){11}P", "(x+x+)+y", "(a?){500}a{500}",
        "^(.?){800}$", "^(?:(?:(?:a?)*)*)*$", "^.{0,10000}$", "^(.*){50}$", "(.{1,20}x){1,20}",
        "(((a{0}){10000}){10000}){10000}", "^((((a{0}){0,9999}){1,9999}){9999}){9999}$"})
    EXPECT_EQ(failure(nlohmann::json{{"pattern", pattern}}.dump()), "") << pattern;
  for (const char* pattern :
       {"((((a{1000}){1000}){1000}){1000}){1000}", "(((x(a{0}b?){10000}){10000}){10000}){10000}",
        "^(.{0,100}){0,100}$", "^(a|b)*a(a|b){20}$", "^[\\s\\S]{0,9999}x[\\s\\S]{0,9999}$",
        "^(a?b?c?d?e?f?g?h?){100}$"})
    EXPECT_NE(failure(nlohmann::json{{"pattern", pattern}}.dump()).find("pattern: "), std::string::npos)
        << pattern;
}

// Sets of characters that overlap in every way: the list of those that hold at a character is long at each.
TEST(HostileSchema, WithstandsOverlappingSets) {
  std::string regex;
  for (int i = 0; i < 3000; ++i)
    regex += fmt::format("{}[\\u{:04X}-\\u{:04X}]", i > 0 ? "|" : "", 0x100 + i, 0x2000 - i);
  const auto grammar = AnswerGrammar::compile({.regex = regex});
  ASSERT_FALSE(grammar.ok());
  EXPECT_NE(grammar.status().message().find("too many ways"), std::string::npos)
      << grammar.status().message();
}

// Each schema of a request has its work, and all of them together have theirs.
TEST(HostileSchema, WithstandsManyCostlyFunctions) {
  AnswerFormat format{.chat = true};
  for (int i = 0; i < 300; ++i) {
    const nlohmann::json schema = {{"pattern", fmt::format("^(a|b)*a(a|b){{11}}{}$", i)}};
    format.functions.push_back({fmt::format("f{}", i), schema.dump()});
  }
  const double start = cpu_seconds();
  EXPECT_FALSE(AnswerGrammar::compile(format).ok());
  const double whole = cpu_seconds() - start;
  // Without its client a request takes no part of that.
  std::stop_source left;
  left.request_stop();
  EXPECT_EQ(AnswerGrammar::compile(format, left.get_token()).status().code(), StatusCode::kCancelled);
  EXPECT_LE(cpu_seconds() - start - whole, whole / 10);
  format.functions.resize(3);
  EXPECT_TRUE(AnswerGrammar::compile(format).ok());
}

// A schema that is written twice, or referred to twice, is looked at once.
TEST(HostileSchema, SharesWhatIsTheSame) {
  nlohmann::json doubling = {{"$ref", "#/$defs/0"}};
  for (int i = 0; i < 25; ++i) {
    const nlohmann::json next = {{"$ref", "#/$defs/" + std::to_string(i + 1)}},
                         titled = {{"title", "t"}, {"allOf", {next}}};
    doubling["$defs"][std::to_string(i)] = {{"allOf", {next, titled}}};
  }
  doubling["$defs"]["25"] = {{"type", "string"}};
  EXPECT_EQ(failure(doubling.dump()), "");
  const std::string doubled = doubling.dump();
  const auto document = SchemaDocument::parse(doubled, "s");
  ASSERT_TRUE(document.ok());
  Work work;
  SchemaContext context(*document.value(), work);
  SchemaCases cases(context);
  const auto found = cases.of({&document.value()->root()});
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found.value().size(), 1u);
  EXPECT_LT(work.done(), 10'000u);
}

// No list of such a length is planned: its values are too few.
TEST(HostileSchema, ListsLongerThanTheirValues) {
  nlohmann::json schema = {
      {"type", "array"}, {"uniqueItems", true}, {"items", {{"enum", {1, 2, 3, 4, 5, 6, 7, 8, 9}}}}};
  for (const uint64_t min :
       {uint64_t{10}, uint64_t{10'000'000}, uint64_t{4294967294}, uint64_t{4294967295}, uint64_t{1} << 63}) {
    schema["minItems"] = min;
    EXPECT_NE(failure(schema.dump()), "") << min;
  }
  schema["minItems"] = 9;
  EXPECT_EQ(failure(schema.dump()), "");
}

TEST(HostileSchema, ThousandsOfContainedItems) {
  nlohmann::json schema = {{"allOf", nlohmann::json::array()}};
  for (int i = 0; i < 1000; ++i)
    schema["allOf"].push_back({{"contains", {{"const", i}}}, {"minContains", 1000}, {"maxContains", 1000}});
  EXPECT_NE(failure(schema.dump()).find("too much work"), std::string::npos);
}

// One bit for each: as many as a word has, and one more.
TEST(HostileSchema, AsManyPatternsAsBits) {
  nlohmann::json strings = {{"type", "string"}, {"allOf", nlohmann::json::array()}},
                 names = {{"type", "object"}};
  for (int i = 0; i < 64; ++i) strings["allOf"].push_back({{"pattern", "^a{" + std::to_string(i + 1) + "}"}});
  const auto grammar = AnswerGrammar::compile({.json_schema = strings.dump()});
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  EXPECT_TRUE(matches(grammar.value(), '"' + std::string(64, 'a') + '"'));
  EXPECT_FALSE(matches(grammar.value(), '"' + std::string(63, 'a') + '"'));
  strings["allOf"].push_back({{"pattern", "b"}});
  EXPECT_NE(failure(strings.dump()).find("over 64 patterns"), std::string::npos);
  for (int i = 0; i < 70; ++i) names["patternProperties"]["^" + std::to_string(i)] = {{"type", "string"}};
  EXPECT_NE(failure(names.dump()).find("over 64 patterns"), std::string::npos);
}

std::string text_of(int i) { return fmt::format("value number {:09}", i); }

// A list in another one, and lists that exclude each other; equal ends of texts are one.
TEST(HostileSchema, ThousandsOfTexts) {
  const auto texts = [](int count) { return list(count, [](int i) { return Ordered(text_of(i)); }); };
  Ordered more = texts(1'000);
  more.push_back(nullptr);
  const Ordered other = list(1'000, [](int i) { return Ordered(text_of(i) + "x"); });
  for (const Ordered& schema :
       {Ordered{{"anyOf", {{{"enum", texts(1'000)}}, {{"type", "null"}}}}, {"enum", more}},
        Ordered{{"oneOf", {{{"enum", texts(1'000)}}, {{"enum", other}}}}},
        Ordered{{"enum", texts(10'000)}}}) {
    const auto grammar = AnswerGrammar::compile({.json_schema = schema.dump()});
    ASSERT_TRUE(grammar.ok()) << grammar.status().message();
    EXPECT_TRUE(matches(grammar.value(), '"' + text_of(999) + '"'));
    EXPECT_FALSE(matches(grammar.value(), '"' + text_of(10'000) + '"'));
    EXPECT_LT(outcome({.json_schema = schema.dump()}).work, Work::kLimit / 4);
  }
}

// Ends that are equal from where the texts differ are made once, and the limit that is met is named.
TEST(HostileSchema, TextsThatEndAlike) {
  const auto failure_of = [](int count, const std::function<std::string(int)>& end) {
    const auto text = [&](int i) { return Ordered(fmt::format("{:05}/{}", i, end(i))); };
    return failure(Ordered{{"enum", list(count, text)}}.dump());
  };
  std::string letters(260, 'a');
  EXPECT_EQ(failure_of(10'000, [&](int /*i*/) { return letters.substr(210); }), "");
  EXPECT_EQ(failure_of(2'000, [&](int /*i*/) { return letters; }), "");
  EXPECT_EQ(failure_of(2'000, [&](int i) { return std::to_string(i) + letters; }),
            "json_schema: the schema needs over 500000 states, equal ones counted too");
}

// Numbers are equal whether they have a point or not; what no order tells apart is compared.
TEST(HostileSchema, ValuesOfAnyKindInLists) {
  const auto grammar =
      AnswerGrammar::compile({.json_schema = R"({"enum": [1, 2.5, "a", [1], {"b": 1}, null, true, "c"],
        "allOf": [{"enum": ["c", true, {"b": 1}, [1], [2], "a", 1.0, 2, 3, 4, 5]}]})"});
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  for (const char* taken : {"1", "\"a\"", "\"c\"", "[1]", R"({"b": 1})", "true"})
    EXPECT_TRUE(matches(grammar.value(), taken)) << taken;
  for (const char* refused : {"2", "2.5", "null", "[2]", "false"})
    EXPECT_FALSE(matches(grammar.value(), refused)) << refused;
}

// Objects as clouds describe theirs: a limit at each of their texts.
TEST(HostileSchema, ManyLongPatterns) {
  Ordered properties = Ordered::object();
  for (int i = 0; i < 100; ++i)
    properties[fmt::format("p{}", i)] = {{"pattern", fmt::format("^[\\w+=,.@-]{{1,{}}}$", 2048 - i)}};
  EXPECT_EQ(failure(Ordered{{"properties", properties}}.dump()), "");
}

// A schema that is refused for its work is not said to have too many alternatives.
TEST(HostileSchema, SaysWhatWasTooMuch) {
  const Ordered schema = {{"enum", list(9'000, [](int i) { return Ordered::array({i}); })},
                          {"anyOf", list(3, [](int i) -> Ordered {
                             return {{"enum", list(9'000, [i](int j) { return Ordered::array({i, j}); })}};
                           })}};
  EXPECT_NE(failure(schema.dump()).find("too much work"), std::string::npos);
}

// Many functions share their states, and none is blamed for those of others.
TEST(HostileSchema, AsManyFunctionsAsThereMayBe) {
  AnswerFormat format{.chat = true, .must_call = true};
  Ordered schema = {{"type", "object"}, {"properties", Ordered::object()}, {"required", {"name0"}}};
  for (int i = 0; i < 12; ++i)
    schema["properties"]["name" + std::to_string(i)] = {{"type", "string"}, {"enum", {"asc", "desc"}}};
  for (int i = 0; i < 512; ++i) {
    schema["title"] = i;
    format.functions.push_back({fmt::format("function_{}", i), schema.dump()});
  }
  EXPECT_EQ(AnswerGrammar::compile(format).status().message(), "");
  format.functions.resize(8);
  uint64_t random = 1;
  const auto text = [&](int /*i*/) {
    return Ordered(repeated(20, [&](int) {
      random = mixed(random, 1);
      return std::string(1, static_cast<char>('a' + (random >> 60)));
    }));
  };
  for (AnswerFormat::Function& function : format.functions)
    function.json_schema = Ordered{{"enum", list(4'000, text)}}.dump();
  EXPECT_NE(AnswerGrammar::compile(format).status().message().find("the forms of the answer together"),
            std::string::npos);
}

TEST(HostileSchema, ThousandsOfProperties) {
  nlohmann::json schema = {{"type", "object"}};
  for (int i = 0; i < 5000; ++i) schema["properties"]["name" + std::to_string(i)] = {{"type", "integer"}};
  const auto grammar = AnswerGrammar::compile({.json_schema = schema.dump()});
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  EXPECT_TRUE(matches(grammar.value(), R"({"name0": 1, "name4999": 2})"));
  EXPECT_FALSE(matches(grammar.value(), R"({"name5000": 1})"));
}

}  // namespace
}  // namespace moesaic::grammar
