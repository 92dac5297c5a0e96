#include "grammar/pattern.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace moesaic::grammar {
namespace {

// Real days only, a leap day only in leap years; four-digit years from 1000 on.
#define MOESAIC_DATE                                                                                        \
  "(?:[1-9]\\d{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?" \
  ":0[1-9]|1\\d|2[0-8]))|(?:[1-9]\\d(?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)-02-29)"
#define MOESAIC_TIME \
  "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,6})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define MOESAIC_BYTE "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define MOESAIC_LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define MOESAIC_HOST MOESAIC_LABEL "(?:\\." MOESAIC_LABEL "){0,3}"
#define MOESAIC_DURATION_DATE "(?:\\d{1,4}Y(?:\\d{1,3}M(?:\\d{1,4}D)?)?|\\d{1,3}M(?:\\d{1,4}D)?|\\d{1,4}D)"
#define MOESAIC_DURATION_TIME "T(?:\\d{1,5}H(?:\\d{1,5}M(?:\\d{1,5}S)?)?|\\d{1,5}M(?:\\d{1,5}S)?|\\d{1,5}S)"
#define MOESAIC_HEX4 "[0-9A-Fa-f]{1,4}"

// RFC 3339, 4122, 2673, 1123 and, much simplified, 4291, 3986 and 5321.
constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kFormats = {{
    {"date", "^" MOESAIC_DATE "$"},
    {"time", "^" MOESAIC_TIME "$"},
    {"date-time", "^" MOESAIC_DATE "T" MOESAIC_TIME "$"},
    {"duration",
     "^P(?:\\d{1,4}W|" MOESAIC_DURATION_DATE "(?:" MOESAIC_DURATION_TIME ")?|" MOESAIC_DURATION_TIME ")$"},
    {"uuid", "^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$"},
    {"ipv4", "^(?:" MOESAIC_BYTE "\\.){3}" MOESAIC_BYTE "$"},
    {"ipv6",
     "^(?:" MOESAIC_HEX4 "(?::" MOESAIC_HEX4 "){7}|(?:" MOESAIC_HEX4 ":){1,6}(?::" MOESAIC_HEX4
     ")|(?:" MOESAIC_HEX4 ":){1,4}(?::" MOESAIC_HEX4 "){2,3}|(?:" MOESAIC_HEX4 ":){1,2}(?::" MOESAIC_HEX4
     "){4,5}|(?:" MOESAIC_HEX4 ":){1,7}:|:(?::" MOESAIC_HEX4 "){1,7}|::)$"},
    {"hostname", "^" MOESAIC_HOST "$"},
    {"email", "^[A-Za-z0-9](?:[A-Za-z0-9._%+-]{0,62}[A-Za-z0-9])?@" MOESAIC_HOST "$"},
    {"uri",
     "^[A-Za-z][A-Za-z0-9+.-]{0,15}://[A-Za-z0-9._~-]{1,253}(?::\\d{1,5})?(?:/[A-Za-z0-9._~%!$&'()*+,;=:@/"
     "-]*)?"
     "(?:\\?[A-Za-z0-9._~%!$&'()*+,;=:@/?-]*)?(?:#[A-Za-z0-9._~%!$&'()*+,;=:@/?-]*)?$"},
}};

// States of the pattern with the number of characters so far, up to where it no longer matters.
class Counted {
 public:
  Counted(Automaton& a, const CharAutomaton& pattern, uint32_t min, uint32_t max, StateId next)
      : a_(a), pattern_(pattern), min_(min), max_(max), next_(next) {}

  StateId build() {
    const StateId start = at(pattern_.start, 0);
    while (!open_.empty() && !a_.full()) {
      const auto [key, id] = open_.back();
      open_.pop_back();
      expand(key, id);
    }
    return start;
  }

 private:
  using Key = std::pair<int, uint32_t>;

  StateId at(int state, uint32_t count) {
    const auto [entry, fresh] = made_.try_emplace({state, count}, -1);
    if (fresh) open_.push_back({entry->first, entry->second = a_.forward()});
    return entry->second;
  }

  void expand(const Key& key, StateId id) {
    const auto& [state, count] = key;
    std::vector<StateId> targets;
    if (state == 0 && count >= min_) targets.push_back(next_);
    for (const int skip : pattern_.states[state].skips) targets.push_back(at(skip, count));
    const uint32_t more = max_ == kUnlimited ? std::min(count + 1, min_) : count + 1;
    for (const CharAutomaton::Step& step : pattern_.states[state].steps)
      if (more <= max_) targets.push_back(string_character(a_, step.set, at(step.next, more)));
    a_.define(id, targets);
  }

  Automaton& a_;
  const CharAutomaton& pattern_;
  uint32_t min_, max_;
  StateId next_;
  std::map<Key, StateId> made_;
  std::vector<std::pair<Key, StateId>> open_;
};

}  // namespace

std::string_view pattern_of_format(std::string_view format) {
  const auto at =
      std::find_if(kFormats.begin(), kFormats.end(), [&](const auto& f) { return f.first == format; });
  return at == kFormats.end() ? std::string_view() : at->second;
}

StateId patterned_string(Automaton& a, const CharAutomaton& pattern, uint32_t min, uint32_t max,
                         StateId next) {
  return Counted(a, pattern, min, max, next).build();
}

}  // namespace moesaic::grammar
