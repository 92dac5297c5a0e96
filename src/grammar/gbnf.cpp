#include "grammar/gbnf.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "grammar/char_dfa.h"

namespace moesaic::grammar {
namespace {

using Kind = GbnfNode::Kind;

// Tells which parts of a grammar may be empty, and whether a rule can begin with itself.
class GbnfFacts {
 public:
  GbnfFacts(const Gbnf& grammar, Work& work)
      : g_(grammar), work_(work), empty_(g_.rules.size()), open_(g_.rules.size()) {}

  Status find() {
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t i = 0; i < g_.rules.size(); ++i) {
        if (empty_[i] || !may_be_empty(g_.rules[i])) continue;
        empty_[i] = changed = true;
      }
      if (work_.spent()) return invalid("its rules take too much work: simplify it");
    }
    for (int i = 0; i < static_cast<int>(g_.rules.size()); ++i) RETURN_IF_ERROR(check_left(i));
    return {};
  }
  bool may_be_empty(const GbnfNode& node) {
    work_.add(1);
    const auto empty = [&](const GbnfNode& part) { return may_be_empty(part); };
    switch (node.kind) {
      case Kind::kText:
        return node.text.empty();
      case Kind::kSet:
        return false;
      case Kind::kRule:
        return empty_[node.rule];
      case Kind::kSequence:
        return std::all_of(node.parts.begin(), node.parts.end(), empty);
      case Kind::kChoice:
        return std::any_of(node.parts.begin(), node.parts.end(), empty);
      case Kind::kRepeat:
        return node.min == 0 || may_be_empty(node.parts[0]);
    }
    return false;
  }

 private:
  enum class Visit : char { kNone, kOpen, kDone };

  // The rules that a node may begin with.
  void first_rules(const GbnfNode& node, std::vector<int>& rules) {
    if (node.kind == Kind::kRule) rules.push_back(node.rule);
    for (const GbnfNode& part : node.parts) {
      first_rules(part, rules);
      if (node.kind == Kind::kSequence && !may_be_empty(part)) break;
    }
  }
  Status check_left(int rule) {
    if (open_[rule] == Visit::kDone) return {};
    if (open_[rule] == Visit::kOpen)
      return invalid("the rule '{}' begins with itself (left recursion): write it as a repetition",
                     g_.names[rule].substr(0, 80));
    open_[rule] = Visit::kOpen;
    std::vector<int> rules;
    first_rules(g_.rules[rule], rules);
    for (const int next : rules) RETURN_IF_ERROR(check_left(next));
    open_[rule] = Visit::kDone;
    return {};
  }

  const Gbnf& g_;
  Work& work_;
  std::vector<bool> empty_;
  std::vector<Visit> open_;
};

// Repetitions of what may be empty repeat its texts that are not, so that each takes a byte.
class GbnfBuilder {
 public:
  GbnfBuilder(Automaton& automaton, const Gbnf& grammar, GbnfFacts& facts)
      : a_(automaton), g_(grammar), facts_(facts), characters_(automaton, Spelling::kText) {
    for (size_t i = 0; i < g_.rules.size(); ++i) rules_.push_back(a_.forward());
    some_.resize(g_.rules.size(), -1);
  }

  StateId build() {
    for (size_t i = 0; i < g_.rules.size() && !a_.full(); ++i)
      a_.define(rules_[i], {any(g_.rules[i], a_.end_of_rule())});
    while (!open_.empty() && !a_.full()) {
      const int rule = open_.back();
      open_.pop_back();
      a_.define(some_[rule], {some(g_.rules[rule], a_.end_of_rule())});
    }
    return rules_[g_.root];
  }

 private:
  // The node's texts, then next.
  StateId any(const GbnfNode& node, StateId next) {
    switch (node.kind) {
      case Kind::kText:
        return a_.literal(node.text, next);
      case Kind::kSet:
        return characters_.character(node.set, next);
      case Kind::kRule:
        return jump(rules_[node.rule], next);
      case Kind::kSequence:
        for (size_t i = node.parts.size(); i-- > 0;) next = any(node.parts[i], next);
        return next;
      case Kind::kChoice:
        return choice(node, next, &GbnfBuilder::any);
      case Kind::kRepeat:
        return repeat(node, next, facts_.may_be_empty(node.parts[0]) ? 0 : node.min);
    }
    return next;
  }
  // Those that are not empty.
  StateId some(const GbnfNode& node, StateId next) {
    if (!facts_.may_be_empty(node)) return any(node, next);
    switch (node.kind) {
      case Kind::kRule:
        return jump(some_of(node.rule), next);
      case Kind::kSequence:
        return some_sequence(node, next);
      case Kind::kChoice:
        return choice(node, next, &GbnfBuilder::some);
      case Kind::kRepeat:
        return repeat(node, next, 1);
      default:
        return a_.split({});
    }
  }

  // A rule at the end of another one takes its place, so that lists written as recursion need no stack.
  StateId jump(StateId rule, StateId next) { return next == a_.end_of_rule() ? rule : a_.call(rule, next); }
  StateId some_of(int rule) {
    if (some_[rule] < 0) {
      some_[rule] = a_.forward();
      open_.push_back(rule);
    }
    return some_[rule];
  }
  StateId choice(const GbnfNode& node, StateId next, StateId (GbnfBuilder::*part)(const GbnfNode&, StateId)) {
    std::vector<StateId> ways;
    for (const GbnfNode& one : node.parts) ways.push_back((this->*part)(one, next));
    return a_.split(ways);
  }
  // One part is not empty, and those before it are.
  StateId some_sequence(const GbnfNode& node, StateId next) {
    std::vector<StateId> ways;
    for (size_t i = node.parts.size(); i-- > 0;) {
      ways.push_back(some(node.parts[i], next));
      next = any(node.parts[i], next);
    }
    return a_.split(ways);
  }
  // A repeated body is made once, wherever repetitions inside each other ask for it.
  StateId some_of_body(const GbnfNode& body, StateId next) {
    if (body.kind == Kind::kSet || body.kind == Kind::kText || body.kind == Kind::kRule)
      return some(body, next);
    const auto made = bodies_.find(&body);
    const StateId rule = made != bodies_.end() ? made->second : some(body, a_.end_of_rule());
    bodies_.emplace(&body, rule);
    return jump(rule, next);
  }
  StateId repeat(const GbnfNode& node, StateId next, uint32_t min) {
    const GbnfNode& body = node.parts[0];
    if (node.max == 0) return min == 0 ? next : a_.split({});
    if (node.max == 1) {
      const StateId once = some_of_body(body, next);
      return min == 0 ? a_.split({next, once}) : once;
    }
    if (node.max != kUnlimited || min > 1)
      return a_.repeat(some_of_body(body, a_.end_of_rule()), min, node.max, next);
    const StateId loop = a_.forward(), more = some_of_body(body, loop);
    a_.define(loop, {next, more});
    return min == 0 ? loop : more;
  }

  Automaton& a_;
  const Gbnf& g_;
  GbnfFacts& facts_;
  StringMaker characters_;
  std::vector<StateId> rules_, some_;  // by rule; some_: its texts that are not empty, -1: not needed yet
  std::vector<int> open_;              // states of some_ to be defined
  std::unordered_map<const GbnfNode*, StateId> bodies_;
};

Result<StateId> rule_of(Automaton& automaton, std::string_view text, Work& work) {
  ASSIGN_OR_RETURN(const Gbnf grammar, parse_gbnf(text));
  GbnfFacts facts(grammar, work);
  RETURN_IF_ERROR(facts.find());
  return GbnfBuilder(automaton, grammar, facts).build();
}

}  // namespace

Result<StateId> gbnf_rule(Automaton& automaton, std::string_view text, const std::string& name, Work& work) {
  Result<StateId> rule = rule_of(automaton, text, work);
  if (!rule.ok()) return invalid("{}: {}", name, rule.status().message());
  return rule;
}

}  // namespace moesaic::grammar
