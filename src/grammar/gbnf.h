// llama.cpp's grammars (GBNF, https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md) as
// automata. XGrammar's EBNF is the same where it has no look-ahead.
//
//   root ::= "yes" | "no, " reason   # the rule "root" is the answer
//   reason ::= [a-z ]{1,40} "."
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/characters.h"
#include "grammar/work.h"
#include "moesaic/status.h"

namespace moesaic::grammar {

inline constexpr size_t kMaxGbnfBytes = 256 << 10, kMaxGbnfNodes = 50'000, kMaxGbnfRules = 2'000;
inline constexpr uint32_t kMaxGbnfCount = 10'000;
inline constexpr int kMaxGbnfNesting = 64;

struct GbnfNode {
  enum class Kind { kText, kSet, kRule, kSequence, kChoice, kRepeat };
  Kind kind = Kind::kSequence;
  std::string text;             // kText
  CharSet set;                  // kSet: one character of it
  int rule = -1;                // kRule: its number
  std::vector<GbnfNode> parts;  // kSequence, kChoice; kRepeat: one
  uint32_t min = 0, max = 0;    // kRepeat; max may be kUnlimited
};

struct Gbnf {
  std::vector<GbnfNode> rules;
  std::vector<std::string> names;
  int root = -1;
};

// Fails with one line that has the line's number: on bad syntax, rules that are missing or there twice,
// tokens
// (<...>), and beyond the limits above.
Result<Gbnf> parse_gbnf(std::string_view text);

// A rule for the texts of its root. Fails on left recursion too. name stands in the error.
Result<StateId> gbnf_rule(Automaton& automaton, std::string_view text, const std::string& name, Work& work);

}  // namespace moesaic::grammar
