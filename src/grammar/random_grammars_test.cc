// Random small grammars against the definition of what they take: every text of up to six letters.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "grammar/schema_matches.h"

namespace moesaic::grammar {
namespace {

struct Node {
  enum class Kind { kText, kRule, kSequence, kChoice, kRepeat };
  Kind kind = Kind::kText;
  std::string text;  // a's and b's, or empty
  int rule = 0;
  std::vector<Node> parts;
  int min = 0, max = 0;  // kRepeat; max -1: no limit
};

constexpr int kRules = 4;

class RandomGrammar {
 public:
  explicit RandomGrammar(uint32_t seed) : rng_(seed) {
    for (int i = 0; i < kRules; ++i) rules_.push_back(node(3));
  }

  std::string gbnf() const {
    std::string text;
    for (int i = 0; i < kRules; ++i)
      text += (i == 0 ? "root" : name(i)) + " ::= " + written(rules_[i]) + "\n";
    return text;
  }
  // For grammars without left recursion.
  bool takes(const std::string& text) const {
    known_.clear();
    return ends(rules_[0], text, 0).contains(static_cast<int>(text.size()));
  }

 private:
  static std::string name(int rule) { return rule == 0 ? "root" : "r" + std::to_string(rule); }

  int below(int n) { return static_cast<int>(rng_() % n); }
  Node node(int depth) {
    const int kind = depth == 0 ? below(2) : below(6);
    if (kind == 0) {
      const char* const texts[] = {"", "a", "b", "ab", "a", "b"};
      return {.text = texts[below(6)]};
    }
    if (kind == 1) return {.kind = Node::Kind::kRule, .rule = below(kRules)};
    if (kind == 5) {
      const int min = below(3), max = below(2) == 0 ? -1 : min + below(3);
      return {.kind = Node::Kind::kRepeat, .parts = {node(depth - 1)}, .min = min, .max = max};
    }
    Node made{.kind = kind == 2 ? Node::Kind::kChoice : Node::Kind::kSequence};
    for (int i = 1 + below(3); i > 0; --i) made.parts.push_back(node(depth - 1));
    return made;
  }

  static std::string written(const Node& n) {
    if (n.kind == Node::Kind::kText) return "\"" + n.text + "\"";
    if (n.kind == Node::Kind::kRule) return name(n.rule);
    std::string text = "(";
    for (size_t i = 0; i < n.parts.size(); ++i)
      text += (i == 0 ? "" : n.kind == Node::Kind::kChoice ? " | " : " ") + written(n.parts[i]);
    text += ')';
    if (n.kind != Node::Kind::kRepeat) return text;
    return text + "{" + std::to_string(n.min) + "," + (n.max < 0 ? "" : std::to_string(n.max)) + "}";
  }

  // The places where a match of the node may end that begins at this place of the text.
  std::set<int> ends(const Node& n, const std::string& text, int from) const {
    const auto known = known_.find({&n, from});
    if (known != known_.end()) return known->second;
    return known_[{&n, from}] = found_ends(n, text, from);
  }
  std::set<int> found_ends(const Node& n, const std::string& text, int from) const {
    switch (n.kind) {
      case Node::Kind::kText: {
        if (text.compare(from, n.text.size(), n.text) != 0) return {};
        return {from + static_cast<int>(n.text.size())};
      }
      case Node::Kind::kRule:
        return ends(rules_[n.rule], text, from);
      case Node::Kind::kChoice: {
        std::set<int> all;
        for (const Node& part : n.parts) all.merge(ends(part, text, from));
        return all;
      }
      case Node::Kind::kSequence: {
        std::set<int> at = {from};
        for (const Node& part : n.parts) at = after(part, text, at);
        return at;
      }
      case Node::Kind::kRepeat: {
        std::set<int> at = {from}, all;
        // Beyond the text's length nothing new comes, but for the empty text, which may be taken any number
        // of times.
        const int enough = n.min + static_cast<int>(text.size()) + 1,
                  times = n.max < 0 ? enough : std::min(n.max, enough);
        if (n.min == 0) all = at;
        for (int i = 1; i <= times; ++i) {
          at = after(n.parts[0], text, at);
          if (i >= n.min) all.insert(at.begin(), at.end());
        }
        return all;
      }
    }
    return {};
  }
  std::set<int> after(const Node& n, const std::string& text, const std::set<int>& from) const {
    std::set<int> all;
    for (const int at : from) all.merge(ends(n, text, at));
    return all;
  }

  std::mt19937 rng_;
  std::vector<Node> rules_;
  mutable std::map<std::pair<const Node*, int>, std::set<int>> known_;  // for the text at hand
};

std::vector<std::string> all_texts(size_t letters) {
  std::vector<std::string> all = {""};
  for (size_t i = 0; i < all.size() && all[i].size() < letters; ++i)
    for (const char c : {'a', 'b'}) all.push_back(all[i] + c);
  return all;
}

TEST(RandomGrammars, TakeWhatTheyAreDefinedToTake) {
  const auto texts = all_texts(6);
  int compared = 0, taken = 0;
  for (uint32_t seed = 0; seed < 2500; ++seed) {
    const RandomGrammar grammar(seed);
    const auto compiled = AnswerGrammar::compile({.gbnf = grammar.gbnf()});
    if (!compiled.ok()) {
      const std::string& why = compiled.status().message();
      const bool expected =
          why.find("left recursion") != std::string::npos || why == "grammar: no text satisfies it";
      EXPECT_TRUE(expected) << why << "\n" << grammar.gbnf();
      continue;
    }
    ++compared;
    for (const std::string& text : texts) {
      const bool takes = grammar.takes(text);
      taken += takes;
      ASSERT_EQ(matches(compiled.value(), text), takes) << '"' << text << "\"\n" << grammar.gbnf();
    }
  }
  EXPECT_GT(compared, 200);
  EXPECT_GT(taken, 2000);
}

}  // namespace
}  // namespace moesaic::grammar
