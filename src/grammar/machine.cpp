#include "grammar/machine.h"

#include <algorithm>

#include "base/reserve_more.h"

namespace moesaic::grammar {
namespace {

void make_sorted_set(auto& list) {
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
}

}  // namespace

Machine::Machine(const Automaton& automaton, uint32_t reach) : automaton_(automaton), reach_(reach) {
  for (const Stack stack : {kBottom, kElsewhere}) {
    stacks_.append({});
    about_.push_back({.depth = 0, .coarse = stack});
  }
}

uint32_t Machine::coarse_count(const Caller& caller, uint32_t reach) const {
  const State& s = automaton_[caller.next];
  if (s.kind != State::Kind::kRepeat || caller.count == kUnlimited) return caller.count;
  const uint64_t reached = uint64_t{caller.count} + reach;
  if (reached < s.min) return 0;
  return caller.count >= s.min && reached < s.max ? s.min : caller.count;
}

// The stack with these callers, which are sorted. Those below it are known, and so are their coarse ones.
// If memory runs out, either no stack is added, or one that counts as its own coarse one.
Stack Machine::stack_of(std::span<const Caller> callers) {
  reserve_more(about_, 1);
  const auto [stack, fresh] = stacks_.add(callers);
  if (!fresh) return stack;
  uint32_t below = 0;
  for (const Caller& caller : callers) below = std::max(below, about_[caller.below].depth);
  about_.push_back({.depth = below + 1, .coarse = stack});
  std::vector<Caller> coarse(callers.begin(), callers.end());
  for (Caller& caller : coarse)
    caller = {caller.next, coarse_count(caller, reach_), about_[caller.below].coarse};
  make_sorted_set(coarse);
  if (!std::equal(coarse.begin(), coarse.end(), callers.begin(), callers.end()))
    about_[stack].coarse = stack_of(coarse);
  return stack;
}

void Machine::visit(StateId state, Stack stack) {
  spend(1);
  if (seen_.insert(static_cast<uint64_t>(state) << 32 | static_cast<uint32_t>(stack)))
    open_.push_back({state, stack});
}

void Machine::call(StateId rule, const Caller& caller) {
  spend(1);
  calls_.push_back({automaton_.rank(rule), rule, caller});
  std::push_heap(calls_.begin(), calls_.end());
}

// `count`: how often the rule has been taken.
void Machine::repeat(StateId id, uint32_t count, Stack stack) {
  const State& s = automaton_[id];
  if (count >= s.min) visit(s.next, stack);
  if (count >= s.max) return;
  // Where there is no limit only the way to the minimum is counted.
  const uint32_t after = s.max == kUnlimited ? std::min(count + 1, s.min) : count + 1;
  call(s.body, {id, after, stack});
}

void Machine::leave_to(Stack stack) {
  for (const Caller& caller : stacks_[stack]) {
    if (left_ == 0) return;
    if (automaton_[caller.next].kind == State::Kind::kRepeat && caller.count != kUnlimited)
      repeat(caller.next, caller.count, caller.below);
    else
      visit(caller.next, caller.below);
  }
}

void Machine::follow(StateId id, Stack stack) {
  const State& s = automaton_[id];
  switch (s.kind) {
    case State::Kind::kBytes:
      found_.push_back({id, stack});
      break;
    case State::Kind::kSplit:
      for (size_t i = 0; i < s.edges.size() && left_ > 0; ++i) visit(s.edges[i].next, stack);
      break;
    case State::Kind::kCall:
      // Entered for its texts that take a byte; for the empty one it is passed by.
      if (automaton_.may_be_empty(s.body)) visit(s.next, stack);
      call(s.body, {s.next, kUnlimited, stack});
      break;
    case State::Kind::kRepeat:
      repeat(id, 0, stack);
      break;
    case State::Kind::kReturn:
      if (stack == kBottom || stack == kElsewhere)
        found_.push_back({id, stack});
      else
        leave_to(stack);
  }
}

// Enters the next rule, for all that call it.
void Machine::follow_calls() {
  const auto [rank, rule, first] = calls_.front();
  callers_.clear();
  while (!calls_.empty() && calls_.front().rule == rule) {
    callers_.push_back(calls_.front().caller);
    std::pop_heap(calls_.begin(), calls_.end());
    calls_.pop_back();
  }
  spend(callers_.size());
  make_sorted_set(callers_);
  const Stack stack = stack_of(callers_);
  if (about_[stack].depth > kMaxDepth) left_ = 0;
  visit(rule, stack);
}

void Machine::begin(uint64_t limit) {
  limit_ = left_ = limit;
  open_.clear();
  calls_.clear();
  seen_.clear();
  found_.clear();
}

Machine::Step Machine::take_found() {
  while (left_ > 0 && !(open_.empty() && calls_.empty())) {
    if (open_.empty()) {
      follow_calls();
      continue;
    }
    const Configuration next = open_.back();
    open_.pop_back();
    follow(next.state, next.stack);
  }
  work_ += limit_ - left_;
  if (left_ == 0) return {};
  std::sort(found_.begin(), found_.end());
  return found_;
}

Machine::Step Machine::enter(StateId rule, Stack stack, uint64_t limit) {
  begin(limit);
  visit(rule, stack);
  return take_found();
}

Machine::Step Machine::step(std::span<const Configuration> from, uint8_t byte, uint64_t limit) {
  begin(limit);
  for (const Configuration& c : from) {
    if (left_ == 0) break;
    const auto& edges = automaton_[c.state].edges;
    spend(1 + edges.size() / 8);
    for (size_t i = 0; i < edges.size() && edges[i].low <= byte; ++i)
      if (byte <= edges[i].high) visit(edges[i].next, c.stack);
  }
  return take_found();
}

Machine::Step Machine::leave(Stack stack, uint64_t limit) {
  begin(limit);
  leave_to(stack);
  return take_found();
}

// Stacks have higher numbers than what is below them.
Machine::Step Machine::adopt(const Machine& other, std::span<const Configuration> configurations) {
  std::vector<Stack> ours(other.about_.size(), -1), wanted;
  const auto want = [&](Stack stack) {
    if (ours[stack] < 0) wanted.push_back(stack);
    ours[stack] = 0;
  };
  size_t callers = 0;
  for (const Configuration& c : configurations) want(c.stack);
  for (size_t i = 0; i < wanted.size(); ++i) {
    const auto list = other.stacks_[wanted[i]];
    if ((callers += list.size()) > kMaxAdopted) return {};
    for (const Caller& caller : list) want(caller.below);
  }
  std::sort(wanted.begin(), wanted.end());
  for (const Stack stack : wanted) {
    if (stack == kBottom || stack == kElsewhere) {
      ours[stack] = stack;
      continue;
    }
    const auto list = other.stacks_[stack];
    std::vector<Caller> copy(list.begin(), list.end());
    for (Caller& caller : copy) caller.below = ours[caller.below];
    std::sort(copy.begin(), copy.end());
    ours[stack] = stack_of(copy);
  }
  work_ += callers;
  Configurations made(configurations.begin(), configurations.end());
  for (Configuration& c : made) c.stack = ours[c.stack];
  make_sorted_set(made);
  return made;
}

Configurations Machine::coarse(std::span<const Configuration> configurations) const {
  Configurations made(configurations.begin(), configurations.end());
  for (Configuration& c : made) c.stack = about_[c.stack].coarse;
  make_sorted_set(made);
  return made;
}

std::optional<Caller> Machine::counted(Stack stack) const {
  const auto callers = stacks_[stack];
  if (callers.size() != 1 || callers[0].count == kUnlimited) return {};
  return automaton_[callers[0].next].kind == State::Kind::kRepeat ? std::optional(callers[0]) : std::nullopt;
}

bool Machine::alike(Stack a, Stack b, uint32_t reach) const {
  constexpr int kDeepest = 8;
  for (int depth = 0; a != b; ++depth) {
    const auto x = stacks_[a], y = stacks_[b];
    if (depth == kDeepest || x.size() != 1 || y.size() != 1 || x[0].next != y[0].next ||
        coarse_count(x[0], reach) != coarse_count(y[0], reach))
      return false;
    a = x[0].below, b = y[0].below;
  }
  return true;
}

bool Machine::alike(std::span<const Configuration> a, std::span<const Configuration> b,
                    uint32_t reach) const {
  constexpr size_t kMost = 8;
  return a.size() <= kMost && std::ranges::equal(a, b, [&](const Configuration& x, const Configuration& y) {
           return x.state == y.state && alike(x.stack, y.stack, reach);
         });
}

bool accepts(const Automaton& automaton, StateId rule, std::string_view text) {
  Machine machine(automaton);
  Machine::Step at = machine.enter(rule, kBottom);
  for (size_t i = 0; i < text.size() && at; ++i) at = machine.step(*at, static_cast<uint8_t>(text[i]));
  return at && std::any_of(at->begin(), at->end(), [&](const Configuration& c) {
           return automaton[c.state].kind == State::Kind::kReturn;
         });
}

}  // namespace moesaic::grammar
