// For tests of schemas: what they take and refuse.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "grammar/schema_matches.h"

namespace moesaic::grammar {

struct Case {
  std::string schema;
  std::vector<std::string> taken, refused;
  const char* note = nullptr;  // all that is noted; nullptr: anything
};

inline std::string notes_of(const AnswerGrammar& grammar) {
  std::string all;
  for (const std::string& note : grammar.notes()) all += (all.empty() ? "" : "\n") + note;
  return all;
}

inline void check(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    const auto grammar = AnswerGrammar::compile({.json_schema = c.schema});
    ASSERT_TRUE(grammar.ok()) << c.schema << "\n" << grammar.status().message();
    for (const std::string& text : c.taken)
      EXPECT_TRUE(matches(grammar.value(), text)) << c.schema << "\n" << text;
    for (const std::string& text : c.refused)
      EXPECT_FALSE(matches(grammar.value(), text)) << c.schema << "\n" << text;
    EXPECT_EQ(c.note == nullptr ? "" : notes_of(grammar.value()), c.note == nullptr ? "" : c.note)
        << c.schema;
  }
}

inline std::string failure(const std::string& schema) {
  const auto grammar = AnswerGrammar::compile({.json_schema = schema});
  return grammar.ok() ? "" : grammar.status().message();
}

}  // namespace moesaic::grammar
