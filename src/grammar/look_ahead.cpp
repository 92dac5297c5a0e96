#include "grammar/look_ahead.h"

#include <algorithm>
#include <map>
#include <utility>

namespace moesaic::grammar {
namespace {

constexpr uint64_t kPairWork = 20, kStepWork = 5;  // steps

CharSet intersection(const CharSet& a, const CharSet& b) {
  CharSet both;
  for (auto x = a.begin(), y = b.begin(); x != a.end() && y != b.end();) {
    const CharRange common{std::max(x->low, y->low), std::min(x->high, y->high)};
    if (common.low <= common.high) both.push_back(common);
    x->high < y->high ? ++x : ++y;
  }
  return both;
}

// Pairs of a state of the automaton and one of `rest`, each made once.
class Pairs {
 public:
  Pairs(CharAutomaton& automaton, const CharDfa& rest, bool must, Work& work,
        const std::function<int(CharAutomaton::State)>& add)
      : a_(automaton), rest_(rest), must_(must), work_(work), add_(add) {
    for (const CharDfa::State& state : rest.states) {
      CharSet& others = others_.emplace_back();
      for (const auto& [set, next] : state.steps) others.insert(others.end(), set.begin(), set.end());
      work_.add(others.size());
      others = complement(normalized(std::move(others)));
    }
  }

  int at(int state, int place) {
    const auto [entry, fresh] = made_.try_emplace({state, place}, 0);
    if (fresh) open_.push_back({entry->first, entry->second = add_({})});
    return entry->second;
  }
  void expand(const std::function<bool()>& stopped) {
    while (!open_.empty() && !stopped()) {
      const auto [pair, id] = open_.back();
      open_.pop_back();
      CharAutomaton::State made = expanded(pair.first, pair.second);
      a_.states[id] = std::move(made);
    }
  }

 private:
  CharAutomaton::State expanded(int state, int place) {
    const CharAutomaton::State from = a_.states[state];  // states are added below
    const CharDfa::State& rest = rest_.states[place];
    CharAutomaton::State made{.where = from.where};
    work_.add(kPairWork + from.steps.size() + from.skips.size());
    if (state == 0 && (rest.taken != 0) == must_) made.skips.push_back(0);
    for (const int skip : from.skips) made.skips.push_back(at(skip, place));
    for (const auto& [set, next] : from.steps) {
      for (const auto& [other, then] : rest.steps) {
        if (work_.spent()) return made;
        add_step(made, set, other, next, then);
      }
      if (!must_) add_step(made, set, others_[place], next, -1);
    }
    return made;
  }
  // place: -1 where nothing of the look-ahead can come any more.
  void add_step(CharAutomaton::State& made, int set, const CharSet& other, int next, int place) {
    work_.add(kStepWork + a_.sets[set].size() + other.size());
    CharSet both = intersection(a_.sets[set], other);
    if (both.empty()) return;
    const auto [entry, fresh] = sets_.try_emplace(std::move(both), static_cast<int>(a_.sets.size()));
    if (fresh) a_.sets.push_back(entry->first);
    made.steps.push_back({entry->second, place < 0 ? next : at(next, place)});
  }

  CharAutomaton& a_;
  const CharDfa& rest_;
  const bool must_;
  Work& work_;
  const std::function<int(CharAutomaton::State)>& add_;
  std::vector<CharSet> others_;  // by place: characters that nothing of the look-ahead begins with
  std::map<CharSet, int> sets_;
  std::map<std::pair<int, int>, int> made_;
  std::vector<std::pair<std::pair<int, int>, int>> open_;
};

}  // namespace

int looking_ahead(CharAutomaton& automaton, int from, const CharDfa& rest, bool must, Work& work,
                  const std::function<int(CharAutomaton::State)>& add, const std::function<bool()>& stopped) {
  Pairs pairs(automaton, rest, must, work, add);
  const int first = pairs.at(from, 0);
  pairs.expand(stopped);
  return first;
}

}  // namespace moesaic::grammar
