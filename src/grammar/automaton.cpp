#include "grammar/automaton.h"

#include <bitset>

namespace moesaic::grammar {

StateId Automaton::add(State state) {
  full_ = full_ || size() >= kMaxStates;
  if (full_) return end_of_rule();
  states_.push_back(std::move(state));
  return size() - 1;
}

StateId Automaton::split(const std::vector<StateId>& targets) {
  const StateId id = add({State::Kind::kSplit});
  define(id, targets);
  return id;
}

void Automaton::define(StateId forward, const std::vector<StateId>& targets) {
  if (full_) return;
  for (const StateId target : targets) states_[forward].edges.push_back({0, 0, target});
}

StateId Automaton::literal(std::string_view text, StateId next) {
  for (size_t i = text.size(); i-- > 0;) next = byte(static_cast<uint8_t>(text[i]), next);
  return next;
}

StateId Automaton::repeat(StateId rule, uint32_t min, uint32_t max, StateId next) {
  return add({State::Kind::kRepeat, rule, next, min, max});
}

void Automaton::finish() {
  find_ends();
  find_classes();
}

// Backwards from the return state: a state is looked at again whenever one that it leads to turns out well.
void Automaton::find_ends() {
  std::vector<std::vector<StateId>> leads_here(states_.size());
  for (StateId id = 0; id < size(); ++id) {
    const State& s = states_[id];
    for (const Edge& edge : s.edges) leads_here[edge.next].push_back(id);
    if (s.next >= 0) leads_here[s.next].push_back(id);
    if (s.body >= 0) leads_here[s.body].push_back(id);
  }
  can_end_.assign(states_.size(), false);
  std::vector<StateId> found = {end_of_rule()};
  can_end_[end_of_rule()] = true;
  while (!found.empty()) {
    const StateId reached = found.back();
    found.pop_back();
    for (const StateId id : leads_here[reached]) {
      const State& s = states_[id];
      const bool goes_on = s.next < 0 || can_end_[s.next];
      const bool skips = s.kind == State::Kind::kRepeat && s.min == 0;
      if (can_end_[id] || !goes_on || (s.body >= 0 && !can_end_[s.body] && !skips)) continue;
      can_end_[id] = true;
      found.push_back(id);
    }
  }
}

void Automaton::find_classes() {
  std::bitset<257> begins;
  for (const State& s : states_) {
    if (s.kind != State::Kind::kBytes) continue;
    for (const Edge& edge : s.edges) begins.set(edge.low), begins.set(edge.high + 1);
  }
  int last = 0;
  for (int byte = 0; byte < 256; ++byte) {
    last += byte > 0 && begins[byte];
    class_of_[byte] = static_cast<uint8_t>(last);
  }
  classes_ = last + 1;
}

}  // namespace moesaic::grammar
