// Schemas that are made to cost much: each is taken or refused within a bound of steps.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <stop_token>

#include "grammar/schema_cases.h"
#include "grammar/schema_test_cases.h"

namespace moesaic::grammar {
namespace {

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
        "^(.?){800}$", "^(?:(?:(?:a?)*)*)*$", "^.{0,10000}$", "^(.*){50}$", "(.{1,20}x){1,20}"})
    EXPECT_EQ(failure(nlohmann::json{{"pattern", pattern}}.dump()), "") << pattern;
  for (const char* pattern :
       {"((((a{1000}){1000}){1000}){1000}){1000}", "^(.{0,100}){0,100}$", "^(a|b)*a(a|b){20}$",
        "^[\\s\\S]{0,9999}x[\\s\\S]{0,9999}$", "^(a?b?c?d?e?f?g?h?){100}$"})
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
  EXPECT_FALSE(AnswerGrammar::compile(format).ok());
  format.functions.resize(3);
  EXPECT_TRUE(AnswerGrammar::compile(format).ok());
}

TEST(HostileSchema, EndsWithItsClient) {
  std::stop_source left;
  left.request_stop();
  EXPECT_EQ(AnswerGrammar::compile({.json_schema = "{}"}, left.get_token()).status().code(),
            StatusCode::kCancelled);
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
