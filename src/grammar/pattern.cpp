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
#define MOESAIC_LABEL "[A-Za-z0-9](?:-?[A-Za-z0-9]){0,31}"
#define MOESAIC_HOST MOESAIC_LABEL "(?:\\." MOESAIC_LABEL "){0,3}"
#define MOESAIC_EMAIL "[A-Za-z0-9](?:[._%+-]?[A-Za-z0-9]){0,31}@" MOESAIC_HOST
#define MOESAIC_URI_CHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*"
#define MOESAIC_QUERY "(?:\\?" MOESAIC_URI_CHAR ")?(?:#" MOESAIC_URI_CHAR ")?"
#define MOESAIC_URI                                                                          \
  "[A-Za-z][A-Za-z0-9+.-]{0,15}://[A-Za-z0-9._~-]{1,253}(?::\\d{1,5})?(?:/" MOESAIC_URI_CHAR \
  ")?" MOESAIC_QUERY
#define MOESAIC_PATH "\\.{0,2}(?:/[A-Za-z0-9._~-]" MOESAIC_URI_CHAR ")?" MOESAIC_QUERY
#define MOESAIC_DURATION_DATE "(?:\\d{1,4}Y(?:\\d{1,3}M(?:\\d{1,4}D)?)?|\\d{1,3}M(?:\\d{1,4}D)?|\\d{1,4}D)"
#define MOESAIC_DURATION_TIME "T(?:\\d{1,5}H(?:\\d{1,5}M(?:\\d{1,5}S)?)?|\\d{1,5}M(?:\\d{1,5}S)?|\\d{1,5}S)"
#define MOESAIC_HEX4 "[0-9A-Fa-f]{1,4}"

// RFC 3339, 4122, 2673, 1123 and, much simplified, 4291, 3986 and 5321.
constexpr std::array<std::pair<std::string_view, std::string_view>, 17> kFormats = {{
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
    {"email", "^" MOESAIC_EMAIL "$"},
    {"idn-hostname", "^" MOESAIC_HOST "$"},
    {"idn-email", "^" MOESAIC_EMAIL "$"},
    {"uri", "^" MOESAIC_URI "$"},
    {"iri", "^" MOESAIC_URI "$"},
    {"uri-reference", "^(?:" MOESAIC_URI "|" MOESAIC_PATH ")$"},
    {"iri-reference", "^(?:" MOESAIC_URI "|" MOESAIC_PATH ")$"},
    {"json-pointer", "^(?:/(?:[^~/]|~[01])*)*$"},
    {"relative-json-pointer", "^(?:0|[1-9]\\d{0,3})(?:#|(?:/(?:[^~/]|~[01])*)*)$"},
}};

}  // namespace

std::string_view pattern_of_format(std::string_view format) {
  const auto at =
      std::find_if(kFormats.begin(), kFormats.end(), [&](const auto& f) { return f.first == format; });
  return at == kFormats.end() ? std::string_view() : at->second;
}

// Each state with whether a $ was passed.
class Simulation {
 public:
  Simulation(const CharAutomaton& automaton, Work& work) : a_(automaton), work_(work) {}

  bool takes(const std::u32string& text) {
    follow(a_.start * 2, true);
    for (const char32_t c : text) {
      const std::vector<int> before = std::exchange(items_, {});
      seen_.assign(a_.states.size() * 2, false);
      work_.add(before.size() + a_.states.size() / 32 + 1);
      if (before.empty() || work_.spent()) return false;
      for (const int item : before) {
        if (item % 2 != 0) continue;
        for (const auto& [set, next] : a_.states[item / 2].steps)
          if (contains(a_.sets[set], c)) follow(next * 2, false);
      }
    }
    return std::any_of(items_.begin(), items_.end(), [](int item) { return item / 2 == 0; });
  }

 private:
  static bool contains(const CharSet& set, char32_t c) {
    const auto after =
        std::upper_bound(set.begin(), set.end(), c, [](char32_t v, CharRange r) { return v < r.low; });
    return after != set.begin() && c <= std::prev(after)->high;
  }
  void follow(int first, bool at_begin) {
    seen_.resize(a_.states.size() * 2);
    std::vector<int> open = {first};
    while (!open.empty()) {
      const int item = open.back();
      open.pop_back();
      if (seen_[item]) continue;
      seen_[item] = true;
      work_.add(1);
      items_.push_back(item);
      const CharAutomaton::State& state = a_.states[item / 2];
      if (state.where == CharAutomaton::Where::kAtBegin && !at_begin) continue;
      const int ended = state.where == CharAutomaton::Where::kAtEnd ? 1 : item % 2;
      for (const int skip : state.skips) open.push_back(skip * 2 + ended);
    }
  }

  const CharAutomaton& a_;
  Work& work_;
  std::vector<int> items_;
  std::vector<bool> seen_;
};

bool takes(const CharAutomaton& automaton, const std::u32string& text, Work& work) {
  return Simulation(automaton, work).takes(text);
}

bool takes(const Pattern& pattern, const std::u32string& text, Work& work) {
  const auto taken = [&](const CharAutomaton& a) { return takes(a, text, work); };
  return taken(pattern.automaton) && std::all_of(pattern.with.begin(), pattern.with.end(), taken) &&
         std::none_of(pattern.without.begin(), pattern.without.end(), taken);
}

// A tree, so that common beginnings are one.
CharAutomaton automaton_of(const std::vector<std::string>& texts) {
  CharAutomaton a{.states = {{}, {}}, .sets = {}, .start = 1};
  std::map<char32_t, int> sets;
  std::map<std::pair<int, char32_t>, int> children;
  for (const std::string& text : texts) {
    int at = a.start;
    for (const char32_t c : code_points(text)) {
      const auto [set, fresh_set] = sets.try_emplace(c, static_cast<int>(a.sets.size()));
      if (fresh_set) a.sets.push_back({{c, c}});
      const auto [child, fresh] = children.try_emplace({at, c}, static_cast<int>(a.states.size()));
      if (fresh) {
        a.states[at].steps.push_back({set->second, child->second});
        a.states.emplace_back();
      }
      at = child->second;
    }
    if (a.states[at].skips.empty()) a.states[at].skips.push_back(0);
  }
  return a;
}

}  // namespace moesaic::grammar
