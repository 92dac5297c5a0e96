// Answers that are no JSON: regular expressions, GBNF grammars and choices.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "grammar/gbnf.h"
#include "grammar/schema_matches.h"

namespace moesaic::grammar {
namespace {

struct FormCase {
  std::string form;
  std::vector<std::string> taken, refused;
};

void check(std::string AnswerFormat::*form, const std::vector<FormCase>& cases) {
  for (const FormCase& c : cases) {
    AnswerFormat format;
    format.*form = c.form;
    const auto grammar = AnswerGrammar::compile(format);
    ASSERT_TRUE(grammar.ok()) << c.form << "\n" << grammar.status().message();
    for (const std::string& text : c.taken)
      EXPECT_TRUE(matches(grammar.value(), text)) << c.form << "\n" << text;
    for (const std::string& text : c.refused)
      EXPECT_FALSE(matches(grammar.value(), text)) << c.form << "\n" << text;
  }
}

std::string failure(const AnswerFormat& format) {
  const auto grammar = AnswerGrammar::compile(format);
  return grammar.ok() ? "" : grammar.status().message();
}

TEST(Regex, MatchesTheWholeText) {
  check(&AnswerFormat::regex, {{"[a-z]+", {"a", "abc"}, {"", "A", "abc1", " a"}},
                               {"^[a-z]+$", {"abc"}, {"", "abc1"}},
                               {R"(\d{3}-\d{4})", {"555-1234"}, {"55-1234", "555-12345"}},
                               {"yes|no", {"yes", "no"}, {"yesno", "y", "maybe"}},
                               {R"(\w+@\w+\.com\n)", {"a@b.com\n"}, {"a@b.com", "a@bxcom\n"}},
                               {"(a|b)*abb", {"abb", "aababb"}, {"ab", "abba"}},
                               {"\"[^\"\\\\]*\"", {"\"\"", "\"a b\""}, {"\"\\n\"", "\""}},
                               {"[\xC3\xA9\xE2\x82\xAC].",
                                {"\xC3\xA9x", "\xE2\x82\xAC\xF0\x9F\x98\x80"},
                                {"\xC3\xA9", "ex", "\xC3\xA9\n"}},
                               {"(25[0-5]|2[0-4]\\d|1?\\d?\\d)(\\.(25[0-5]|2[0-4]\\d|1?\\d?\\d)){3}",
                                {"192.168.0.1", "255.255.255.255"},
                                {"256.1.1.1", "1.2.3", "1.2.3.4."}}});
}

TEST(Regex, RefusesWithALine) {
  EXPECT_EQ(failure({.regex = "a(b"}), "regex: a ( without its ) at character 4 is not supported");
  EXPECT_EQ(failure({.regex = "a)b"}), "regex: a ) without its ( at character 2 is not supported");
  EXPECT_EQ(failure({.regex = "(?i)a"}), "regex: a look-around or flag (? at character 3 is not supported");
  EXPECT_EQ(failure({.regex = "[^\\x00-\\uD7FF\\uE000-\\uFFFF]"}).substr(0, 7), "");
  EXPECT_EQ(failure({.regex = "a$b"}), "regex: no text satisfies it");
  EXPECT_NE(failure({.regex = "\xFF"}).find("UTF-8"), std::string::npos);
  EXPECT_NE(failure({.regex = std::string(100'000, 'a')}).find("bytes are too many"), std::string::npos);
  EXPECT_NE(failure({.regex = "((a{1000}b?){1000}c){1000}"}).find("states"), std::string::npos);
  // Repetitions of nothing, as many as they are.
  EXPECT_EQ(failure({.regex = "(((a{0}){10000}){10000}){10000}"}), "");
  EXPECT_EQ(failure({.regex = "b((((a{0}){0,9999}){1,9999}){9999}){9999}"}), "");
}

TEST(Gbnf, SymbolsAndOperators) {
  check(&AnswerFormat::gbnf,
        {{"root ::= \"yes\" | \"no\"", {"yes", "no"}, {"", "yesno"}},
         {"root ::= [a-z]+ \"-\" [^0-9\\n]", {"abc-x", "a-\xC3\xA9"}, {"-x", "a-1", "a-\n"}},
         {"root ::= \"a\"? \"b\"* \"c\"{2} \"d\"{1,2} \"e\"{,1} \"f\"{1,}",
          {"ccdf", "abbccddefff"},
          {"ccd", "ccdddf"}},
         {"root ::= \"\\x41\\u00e9\\U0001F600\\t\\\"\\\\\" .", {"A\xC3\xA9\xF0\x9F\x98\x80\t\"\\\n"}, {"A"}},
         {"# comment\nroot ::= item (\",\" item)* # more\n\nitem ::= [0-9] |\n  \"x\"\n",
          {"1", "1,x,3"},
          {"1,", ",1"}},
         {"root::=(\n  \"a\" # one\n  \"b\"\n)+", {"ab", "abab"}, {"a"}},
         {"root ::= \"a\"\n  | \"b\"\nother-rule ::= \"c\"", {"a", "b"}, {"c"}},
         {"root ::= \"a\" + ? \"c\"", {"c", "aac"}, {"b"}},
         {"root ::= \"\"", {""}, {"a"}},
         {"root ::= [a\\]\\-z]", {"]", "-", "a"}, {"b", "\\"}}});
}

TEST(Gbnf, Recursion) {
  check(&AnswerFormat::gbnf,
        {{"root ::= \"(\" root \")\" | \"\"", {"", "()", "((()))"}, {"(", "())", "(()"}},
         {"root ::= expr\nexpr ::= term (\"+\" term)*\nterm ::= [0-9]+ | \"(\" expr \")\"",
          {"1+2", "(1+(2+34))+5"},
          {"1+", "(1", "1)"}},
         // Lists as recursion at the end.
         {"root ::= \"a\" ws \"b\"\nws ::= ([ \\t] ws)?", {"ab", "a \t b"}, {"a\nb"}}});
}

TEST(Gbnf, RepetitionsOfWhatMayBeEmpty) {
  check(&AnswerFormat::gbnf, {{"root ::= (\"a\"? \"b\"?)*", {"", "a", "ba", "aabb"}, {"c"}},
                              {"root ::= (\"a\"? \"b\"?){2}",
                               {"", "a", "b", "ab", "ba", "abab", "aa"},
                               {"aaa",
                                "bab"
                                "a"}},
                              {"root ::= e{1,3} \"!\"\ne ::= \"x\" | \"\"", {"!", "xxx!"}, {"xxxx!"}},
                              {"root ::= r \"b\"\nr ::= \"\"{2,4} \"a\"", {"ab"}, {"b", "aab"}},
                              {"root ::= ((\"a\"*)*)*", {"", "aaaa"}, {"b"}},
                              {"root ::= (\"a\"* | \"b\")+ \"c\"", {"c", "aabac"}, {"ab"}}});
}

TEST(Gbnf, RefusesWithALine) {
  EXPECT_EQ(failure({.gbnf = "start: \"a\""}), "grammar: line 1: the rule 'start' has no ::=");
  EXPECT_EQ(failure({.gbnf = "a ::= \"a\""}), "grammar: there is no rule 'root' (root ::= ...)");
  EXPECT_EQ(failure({.gbnf = "root ::= a"}), "grammar: the rule 'a' is used and not there");
  EXPECT_EQ(failure({.gbnf = "root ::= \"a\"\nroot ::= \"b\""}),
            "grammar: line 2: the rule 'root' is there twice");
  EXPECT_EQ(failure({.gbnf = "root ::= a \"x\"\na ::= \"y\"? root"}),
            "grammar: the rule 'root' begins with itself (left recursion): write it as a repetition");
  EXPECT_EQ(failure({.gbnf = "root ::= \"a\n"}), "grammar: line 2: a \" without the one that ends it");
  EXPECT_EQ(failure({.gbnf = "root ::= (\"a\""}), "grammar: line 1: a ( without its )");
  EXPECT_EQ(failure({.gbnf = "root ::= \"\\q\""}), "grammar: line 1: the escape \\'q' is not known");
  EXPECT_EQ(failure({.gbnf = "root ::= \"a\" ]"}), "grammar: line 1: ']' is not expected here");
  EXPECT_EQ(failure({.gbnf = "root ::= <think>"}), "grammar: line 1: tokens (<...>) are not supported");
  EXPECT_EQ(failure({.gbnf = "root ::= \"a\" root"}), "grammar: no text satisfies it");
  EXPECT_EQ(failure({.gbnf = "root ::= \"a\"{3,2}"}), "grammar: line 1: such a count in { } is not known");
  EXPECT_EQ(failure({.gbnf = "root ::= \"\\uD800\""}), "grammar: line 1: an escape that is no character");
}

TEST(Gbnf, HostileOnesEndSoon) {
  std::string nested = "root ::= ", chain = "root ::= r0\n", deep = "root ::= ";
  for (int i = 0; i < 60; ++i) nested += "(\"a\"? (";
  nested += "\"b\"?";
  for (int i = 0; i < 60; ++i) nested += ")*)*";
  EXPECT_NE(failure({.gbnf = nested}).find("parentheses"), std::string::npos);
  for (int i = 0; i < 30; ++i) deep += "(\"a\"? (";
  deep += "\"b\"?";
  for (int i = 0; i < 30; ++i) deep += "){0,9999}){0,9999}";
  EXPECT_EQ(failure({.gbnf = deep}), "");
  for (int i = 0; i < 1900; ++i) chain += fmt::format("r{} ::= r{}?\n", i, i + 1);
  EXPECT_EQ(failure({.gbnf = chain + "r1900 ::= \"a\""}), "");
  EXPECT_NE(failure({.gbnf = "root ::= " + std::string(60'000, '.')}).find("symbols"), std::string::npos);
  EXPECT_NE(failure({.gbnf = "root ::= \"" + std::string(300'000, 'a') + "\""}).find("bytes"),
            std::string::npos);
  EXPECT_NE(failure({.gbnf = "root ::= \"" + std::string(250'000, 'a') + "\""}).find("states"),
            std::string::npos);
}

TEST(Choices, AreTakenWhole) {
  const auto grammar =
      AnswerGrammar::compile({.choices = {"positive", "pos", "negative", "pos", "\xC3\xA9t\xC3\xA9"}});
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  for (const char* text : {"positive", "pos", "negative", "\xC3\xA9t\xC3\xA9"})
    EXPECT_TRUE(matches(grammar.value(), text)) << text;
  for (const char* text : {"", "p", "posi", "negativepos", "\xC3"})
    EXPECT_FALSE(matches(grammar.value(), text)) << text;
}

TEST(Choices, Limits) {
  EXPECT_EQ(failure({.choices = {"a", ""}}), "choice: one of the texts is empty");
  EXPECT_NE(failure({.choices = {std::string(3000, 'a')}}).find("bytes"), std::string::npos);
  EXPECT_NE(failure({.choices = std::vector<std::string>(20'000, "a")}).find("too many"), std::string::npos);
  std::string longest(2000, 'a');
  EXPECT_EQ(failure({.choices = {longest, longest.substr(1), longest.substr(2)}}), "");
}

TEST(Forms, OneAtATime) {
  EXPECT_NE(failure({.json_schema = "{}", .regex = "a"}).find("one form"), std::string::npos);
  EXPECT_NE(failure({.gbnf = "root ::= \"a\"", .choices = {"a"}}).find("one form"), std::string::npos);
  EXPECT_NE(AnswerFormat{.regex = "a"}.key(), AnswerFormat{.gbnf = "a"}.key());
  EXPECT_NE((AnswerFormat{.choices = {"a", "b"}}.key()), AnswerFormat{.choices = {"ab"}}.key());
}

TEST(Forms, OfTheFinalChannelInAChat) {
  const auto grammar = AnswerGrammar::compile({.chat = true, .regex = "[0-9]+"});
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  const auto special = [](const char* name) { return static_cast<char>(kSpecial) + std::string(name); };
  const std::string head = special("<|channel|>") + "final" + special("<|message|>");
  const CompiledGrammar& g = *grammar.value().compiled();
  EXPECT_TRUE(accepts(g.automaton, g.rule, head + "42" + special("<|return|>")));
  EXPECT_FALSE(accepts(g.automaton, g.rule, head + "x" + special("<|return|>")));
}

}  // namespace
}  // namespace moesaic::grammar
