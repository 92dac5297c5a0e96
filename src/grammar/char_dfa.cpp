#include "grammar/char_dfa.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/error.h"

namespace moesaic::grammar {
namespace {

// A state of some pattern with whether a $ was passed, as one number.
using Items = std::vector<int>;

class Determinizer {
 public:
  Determinizer(const std::vector<const CharAutomaton*>& patterns, Work& work)
      : patterns_(patterns), work_(work) {
    int items = 0;
    for (const CharAutomaton* pattern : patterns) {
      first_.push_back(items);
      set_numbers_.emplace_back();
      items += 2 * static_cast<int>(pattern->states.size());
      for (const CharSet& set : pattern->sets) {
        const auto [entry, fresh] = numbers_of_sets_.try_emplace(set, static_cast<int>(sets_.size()));
        if (fresh) sets_.push_back(&entry->first);
        set_numbers_.back().push_back(entry->second);
        work_.add(set.size());
      }
    }
    for (size_t p = 0; p < patterns.size(); ++p) find_endless(p);
    seen_.resize(items);
    work_.add(items / 8);
  }

  Result<CharDfa> run() {
    Items start;
    for (size_t p = 0; p < patterns_.size(); ++p) start.push_back(first_[p] + 2 * patterns_[p]->start);
    state(start, true);
    for (size_t i = 0; i < items_.size(); ++i) {
      expand(static_cast<int>(i));
      if (items_.size() > kMaxDfaStates || work_.spent())
        return invalid("there are too many ways to read it: simplify it");
    }
    return std::move(dfa_);
  }

 private:
  size_t pattern_of(int item) const {
    return std::upper_bound(first_.begin(), first_.end(), item) - first_.begin() - 1;
  }

  // Loops that any text may follow: where a pattern is in one, nothing else of it matters.
  void find_endless(size_t p) {
    const auto& states = patterns_[p]->states;
    endless_.resize(first_[p] + 2 * states.size(), false);
    for (size_t i = 0; i < states.size(); ++i) {
      const auto& skips = states[i].skips;
      const bool loop =
          skips.size() == 2 && skips[0] == 0 && states[i].where == CharAutomaton::Where::kAnywhere;
      if (!loop) continue;
      const auto& steps = states[skips[1]].steps;
      const bool any = steps.size() == 1 && steps[0].next == static_cast<int>(i) &&
                       complement(patterns_[p]->sets[steps[0].set]).empty();
      if (any) endless_[first_[p] + 2 * i] = true;
    }
  }

  // The items that are reached from these without a character, as far as they have steps or are an end.
  Items closure(const Items& from, bool at_begin, uint64_t& taken) {
    Items open = from, found, visited;
    while (!open.empty()) {
      const int item = open.back();
      open.pop_back();
      if (seen_[item]) continue;
      seen_[item] = true;
      visited.push_back(item);
      const size_t p = pattern_of(item);
      const int at = (item - first_[p]) / 2, ended = (item - first_[p]) % 2;
      const CharAutomaton::State& state = patterns_[p]->states[at];
      if (at == 0) taken |= uint64_t{1} << p;
      if (!state.steps.empty() && ended == 0) found.push_back(item);
      if (state.where == CharAutomaton::Where::kAtBegin && !at_begin) continue;
      const int after = state.where == CharAutomaton::Where::kAtEnd ? 1 : ended;
      for (const int skip : state.skips) open.push_back(first_[p] + 2 * skip + after);
    }
    std::map<size_t, int> loops;  // one for each pattern
    for (const int item : visited) {
      seen_[item] = false;
      if (endless_[item]) loops[pattern_of(item)] = item;
    }
    for (const auto& [pattern, item] : loops) only_loop(item, found);
    work_.add(2 * visited.size() + 1);
    std::sort(found.begin(), found.end());
    return found;
  }

  void only_loop(int loop, Items& found) const {
    const size_t p = pattern_of(loop);
    const int end = p + 1 < first_.size() ? first_[p + 1] : static_cast<int>(seen_.size());
    std::erase_if(found, [&](int item) { return first_[p] <= item && item < end; });
    found.push_back(first_[p] + 2 * patterns_[p]->states[(loop - first_[p]) / 2].skips[1]);
  }

  int state(const Items& from, bool at_begin) {
    uint64_t taken = 0;
    Items items = closure(from, at_begin, taken);
    const auto [entry, fresh] =
        numbers_.try_emplace({std::move(items), taken}, static_cast<int>(items_.size()));
    if (fresh) {
      work_.add(entry->first.first.size() + 8);
      items_.push_back(&entry->first.first);
      dfa_.states.push_back({.steps = {}, .taken = taken});
    }
    return entry->second;
  }

  // The sets that begin or stop to hold at each character. Leaves off where the work is spent.
  void expand(int id) {
    std::map<int, Items> targets;  // by set
    for (const int item : *items_[id]) {
      const size_t p = pattern_of(item);
      for (const auto& [set, next] : patterns_[p]->states[(item - first_[p]) / 2].steps) {
        targets[set_numbers_[p][set]].push_back(first_[p] + 2 * next);
      }
    }
    std::map<uint32_t, std::vector<int>> changes;
    for (const auto& [number, unused] : targets) {
      work_.add(4 * sets_[number]->size());
      if (work_.spent()) return;
      for (const CharRange r : *sets_[number])
        for (const uint32_t at : {r.low, r.high + 1}) changes[at].push_back(number);
    }
    std::map<std::vector<int>, CharSet> ranges;
    std::vector<int> active;  // ascending
    for (auto at = changes.begin(); at != changes.end(); ++at) {
      work_.add(at->second.size() * active.size() / 64);
      for (const int set : at->second) {
        const auto place = std::lower_bound(active.begin(), active.end(), set);
        if (place == active.end() || *place != set)
          active.insert(place, set);
        else
          active.erase(place);
      }
      work_.add(at->second.size() + 2 * active.size());
      if (work_.spent()) return;
      if (!active.empty()) ranges[active].push_back({at->first, std::next(at)->first - 1});
    }
    std::map<int, CharSet> steps;
    for (auto& [together, set] : ranges) {
      if (work_.spent()) return;
      Items next;
      for (const int one : together) next.insert(next.end(), targets[one].begin(), targets[one].end());
      CharSet& all = steps[state(next, false)];
      all.insert(all.end(), set.begin(), set.end());
    }
    for (auto& [next, set] : steps) dfa_.states[id].steps.emplace_back(normalized(std::move(set)), next);
  }

  const std::vector<const CharAutomaton*>& patterns_;
  Work& work_;
  std::vector<int> first_;
  std::map<CharSet, int> numbers_of_sets_;
  std::vector<const CharSet*> sets_;           // by number
  std::vector<std::vector<int>> set_numbers_;  // the same by pattern and its own number
  std::vector<bool> seen_, endless_;
  std::map<std::pair<Items, uint64_t>, int> numbers_;
  std::vector<const Items*> items_;
  CharDfa dfa_;
};

// States of a pattern with the number of characters so far, up to where it no longer matters.
template <typename Expand>
class Counted {
 public:
  Counted(Automaton& a, uint32_t min, uint32_t max, Expand expand)
      : a_(a), min_(min), max_(max), expand_(std::move(expand)) {}

  StateId build(int start) {
    const StateId first = at(start, 0);
    while (!open_.empty() && !a_.full()) {
      const auto [key, id] = open_.back();
      open_.pop_back();
      const auto& [state, count] = key;
      const uint32_t more = max_ == kUnlimited ? std::min(count + 1, min_) : count + 1;
      a_.define(id, expand_(*this, state, count, more));
    }
    return first;
  }
  StateId at(int state, uint32_t count) {
    const auto [entry, fresh] = made_.try_emplace({state, count}, -1);
    if (fresh) open_.push_back({entry->first, entry->second = a_.forward()});
    return entry->second;
  }
  bool enough(uint32_t count) const { return count >= min_; }
  bool fits(uint32_t count) const { return count <= max_; }

 private:
  using Key = std::pair<int, uint32_t>;
  Automaton& a_;
  uint32_t min_, max_;
  Expand expand_;
  std::map<Key, StateId> made_;
  std::vector<std::pair<Key, StateId>> open_;
};

bool is_plain(const CharSet& set) {
  return set.size() <= 8 && std::all_of(set.begin(), set.end(), [](CharRange r) {
           const auto within = [&](uint32_t c) { return r.low <= c && c <= r.high; };
           return r.low >= 0x20 && r.high < 0x80 && !within('"') && !within('\\');
         });
}

}  // namespace

Result<CharDfa> determinized(const std::vector<const CharAutomaton*>& patterns, Work& work) {
  if (patterns.size() > kMaxPatterns)
    return invalid("over {} patterns at a time are not supported", kMaxPatterns);
  return Determinizer(patterns, work).run();
}

StateId StringMaker::spelled(const CharSet& set, StateId next) {
  return spelling_ == Spelling::kText ? utf8_character(a_, set, next) : string_character(a_, set, next);
}

StateId StringMaker::rule(const CharSet& set) {
  const auto [entry, fresh] = rules_.try_emplace(set, -1);
  if (fresh) entry->second = spelled(set, a_.end_of_rule());
  return entry->second;
}

StateId StringMaker::character(const CharSet& set, StateId next) {
  return is_plain(set) ? spelled(set, next) : a_.call(rule(set), next);
}

// The same for sets that stay where they are: a large one is looked up once.
class StringMaker::Characters {
 public:
  explicit Characters(StringMaker& strings) : strings_(strings) {}
  StateId operator()(const CharSet& set, StateId next) {
    if (is_plain(set)) return strings_.spelled(set, next);
    const auto [entry, fresh] = rules_.try_emplace(&set, -1);
    if (fresh) entry->second = strings_.rule(set);
    return strings_.a_.call(entry->second, next);
  }

 private:
  StringMaker& strings_;
  std::unordered_map<const CharSet*, StateId> rules_;
};

StateId StringMaker::deterministic(const CharDfa& dfa, uint32_t min, uint32_t max, const Ends& ends) {
  Characters character(*this);
  const auto expand = [&](auto& counted, int state, uint32_t count, uint32_t more) {
    std::vector<StateId> targets;
    if (counted.enough(count)) targets = ends(dfa.states[state].taken);
    for (const auto& [set, next] : dfa.states[state].steps)
      if (counted.fits(more)) targets.push_back(character(set, counted.at(next, more)));
    return targets;
  };
  return Counted(a_, min, max, expand).build(0);
}

StateId StringMaker::ambiguous(const CharAutomaton& pattern, uint32_t min, uint32_t max, StateId next) {
  Characters character(*this);
  const auto expand = [&](auto& counted, int state, uint32_t count, uint32_t more) {
    std::vector<StateId> targets;
    if (state == 0 && counted.enough(count)) targets.push_back(next);
    for (const int skip : pattern.states[state].skips) targets.push_back(counted.at(skip, count));
    for (const CharAutomaton::Step& step : pattern.states[state].steps)
      if (counted.fits(more))
        targets.push_back(character(pattern.sets[step.set], counted.at(step.next, more)));
    return targets;
  };
  return Counted(a_, min, max, expand).build(pattern.start);
}

StateId StringMaker::runs(const std::vector<CharRun>& runs, StateId next) {
  for (size_t i = runs.size(); i-- > 0;) {
    const auto& [set, min, max] = runs[i];
    if (min == 1 && max == 1) {
      next = character(set, next);
    } else if (min <= 1 && max == kUnlimited) {
      const StateId loop = a_.forward(), more = character(set, loop);
      a_.define(loop, {next, more});
      next = min == 0 ? loop : more;
    } else if (max > 0) {
      next = a_.repeat(rule(set), min, max, next);
    }
  }
  return next;
}

}  // namespace moesaic::grammar
