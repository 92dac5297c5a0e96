#include "grammar/automaton.h"

#include <algorithm>
#include <bitset>
#include <numeric>
#include <utility>

#include "grammar/interned_lists.h"

namespace moesaic::grammar {
namespace {

uint32_t hash_of(const State& s) {
  uint64_t h = mixed(static_cast<uint64_t>(s.kind) << 32 | static_cast<uint32_t>(s.body), s.next);
  h = mixed(h, static_cast<uint64_t>(s.min) << 32 | s.max);
  for (const Edge& e : s.edges) h = mixed(h, static_cast<uint64_t>(e.low << 8 | e.high) << 32 | e.next);
  return static_cast<uint32_t>(h ^ (h >> 32));
}

}  // namespace

StateId Automaton::add(State state) {
  full_ = full_ || size() >= kMaxStates || ++made_ > kMaxMade;
  if (full_) return end_of_rule();
  states_.push_back(std::move(state));
  return size() - 1;
}

std::string Automaton::limit() const {
  const std::string each = std::to_string(kMaxMade) + " states, equal ones counted too";
  return made_ > kMaxMade ? each : std::to_string(kMaxStates) + " states";
}

StateId Automaton::add_once(State state) {
  const StateId id = add(std::move(state));
  if (full_) return id;
  const StateId first = first_equal(id);
  if (first != id) states_.pop_back();
  return first;
}

StateId Automaton::first_equal(StateId id) {
  if (in_table_ * 2 >= table_.size()) grow();
  const uint32_t hash = hash_of(states_[id]);
  size_t at = hash & (table_.size() - 1);
  while (table_[at].state >= 0) {
    const Place& other = table_[at];
    if (other.hash == hash && states_[other.state] == states_[id]) return other.state;
    at = (at + 1) & (table_.size() - 1);
  }
  table_[at] = {id, hash};
  ++in_table_;
  return id;
}

void Automaton::grow() {
  const auto before = std::exchange(table_, std::vector<Place>(std::max<size_t>(64, 2 * table_.size())));
  for (const Place& other : before) {
    if (other.state < 0) continue;
    size_t at = other.hash & (table_.size() - 1);
    while (table_[at].state >= 0) at = (at + 1) & (table_.size() - 1);
    table_[at] = other;
  }
}

StateId Automaton::split(const std::vector<StateId>& targets) {
  if (targets.size() == 1) return targets[0];
  State state{State::Kind::kSplit};
  for (const StateId target : targets) state.edges.push_back({0, 0, target});
  return add_once(std::move(state));
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
  return add_once({State::Kind::kRepeat, rule, next, min, max});
}

void Automaton::finish() {
  find_ends();
  simplify();
  find_ranks();
  find_classes();
}

// The states of which holds(state, marks) is true, where more marks never make it false: a state is looked at
// again whenever one that it leads to is marked.
template <typename Holds>
Automaton::Marks Automaton::marked(const std::vector<std::vector<StateId>>& leads_here,
                                   const Holds& holds) const {
  Marks marks(states_.size(), false);
  std::vector<StateId> found;
  const auto look = [&](StateId id) {
    if (marks[id] || !holds(states_[id], marks)) return;
    marks[id] = true;
    found.push_back(id);
  };
  for (StateId id = 0; id < size(); ++id) look(id);
  while (!found.empty()) {
    const StateId reached = found.back();
    found.pop_back();
    for (const StateId id : leads_here[reached]) look(id);
  }
  return marks;
}

void Automaton::find_ends() {
  std::vector<std::vector<StateId>> leads_here(states_.size());
  for (StateId id = 0; id < size(); ++id) {
    const State& s = states_[id];
    for (const Edge& edge : s.edges) leads_here[edge.next].push_back(id);
    if (s.next >= 0) leads_here[s.next].push_back(id);
    if (s.body >= 0) leads_here[s.body].push_back(id);
  }
  const auto any_edge = [](const State& s, const Marks& marks) {
    return std::any_of(s.edges.begin(), s.edges.end(), [&](const Edge& e) { return marks[e.next]; });
  };
  const auto skips = [](const State& s) { return s.kind == State::Kind::kRepeat && s.min == 0; };
  can_end_ = marked(leads_here, [&](const State& s, const Marks& marks) {
    if (s.body < 0) return s.kind == State::Kind::kReturn || any_edge(s, marks);
    return marks[s.next] && (skips(s) || marks[s.body]);
  });
  may_be_empty_ = marked(leads_here, [&](const State& s, const Marks& marks) {
    if (s.body < 0)
      return s.kind == State::Kind::kReturn || (s.kind == State::Kind::kSplit && any_edge(s, marks));
    return marks[s.next] && (skips(s) || marks[s.body]);
  });
  may_take_ = marked(leads_here, [&](const State& s, const Marks& marks) {
    if (s.kind == State::Kind::kBytes) return any_edge(s, can_end_);
    if (s.body < 0) return any_edge(s, marks);
    const bool passes = skips(s) || can_end_[s.body];
    return (marks[s.next] && passes) || (marks[s.body] && can_end_[s.next]);
  });
}

// The state that can take this one's place: behind a call or a repetition of nothing the state that follows,
// for a call at the end of a rule the rule called, for a split with one way that way.
StateId Automaton::simplified(StateId id) const {
  const State& s = states_[id];
  if (s.kind == State::Kind::kSplit && s.edges.size() == 1) return s.edges[0].next;
  if (s.body < 0 || !can_end_[id]) return id;
  if (!may_take_[s.body]) return s.next;
  return s.kind == State::Kind::kCall && s.next == end_of_rule() ? s.body : id;
}

// States keep their numbers; those that nothing leads to any more are left as they are.
void Automaton::simplify() {
  table_.clear(), in_table_ = 0;
  std::vector<StateId> stands_for(states_.size());
  std::iota(stands_for.begin(), stands_for.end(), 0);
  const auto redirect = [&](State& s) {
    std::erase_if(s.edges, [&](const Edge& e) { return !can_end_[e.next]; });
    for (Edge& e : s.edges) e.next = stands_for[e.next];
    if (s.next >= 0) s.next = stands_for[s.next];
    if (s.body >= 0) s.body = stands_for[s.body];
    std::sort(s.edges.begin(), s.edges.end());
    s.edges.erase(std::unique(s.edges.begin(), s.edges.end()), s.edges.end());
  };
  // The states that follow a state were mostly made before it.
  for (StateId id = 0; id < size(); ++id) {
    redirect(states_[id]);
    const StateId simple = simplified(id);
    stands_for[id] = simple != id ? stands_for[simple] : first_equal(id);
  }
  table_ = {};
  for (StateId& id : stands_for)
    while (stands_for[id] != id) id = stands_for[id];
  for (State& s : states_) redirect(s);
}

// The i-th state that comes behind this one without a byte; -1: there are no more.
StateId Automaton::silent_next(StateId id, size_t i) const {
  const State& s = states_[id];
  if (s.kind == State::Kind::kSplit) return i < s.edges.size() ? s.edges[i].next : -1;
  if (s.body < 0 || i > 1) return -1;
  const bool passes = s.kind == State::Kind::kRepeat ? s.min == 0 : may_be_empty_[s.body];
  if (i == 0) return s.body;
  return passes ? s.next : -1;
}

// Tarjan's algorithm (1972): loops are numbered after all that they lead to.
void Automaton::find_ranks() {
  struct Visit {
    StateId state;
    size_t next;  // index in silent_next
  };
  std::vector<int32_t> order(states_.size(), -1), first(states_.size());
  std::vector<StateId> open;
  std::vector<Visit> path;
  int32_t visits = 0, rank = 0;
  rank_.assign(states_.size(), -1);
  const auto enter = [&](StateId id) {
    order[id] = first[id] = visits++;
    open.push_back(id);
    path.push_back({id, 0});
  };
  const auto leave = [&](StateId id) {
    path.pop_back();
    if (!path.empty()) first[path.back().state] = std::min(first[path.back().state], first[id]);
    if (first[id] != order[id]) return;
    for (StateId last = -1; last != id; open.pop_back()) rank_[last = open.back()] = rank;
    ++rank;
  };
  for (StateId root = 0; root < size(); ++root) {
    if (order[root] < 0) enter(root);
    while (!path.empty()) {
      const StateId id = path.back().state, next = silent_next(id, path.back().next++);
      if (next < 0)
        leave(id);
      else if (order[next] < 0)
        enter(next);
      else if (rank_[next] < 0)
        first[id] = std::min(first[id], order[next]);
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
