// Strings: their length, patterns and formats, and what they must not be.
#include <algorithm>

#include "base/error.h"
#include "grammar/schema_compiler.h"

namespace moesaic::grammar {
namespace {

constexpr size_t kMaxCountedStates = 50'000;  // states of a pattern times characters

// The runs with a length, where it is but one that varies.
bool limit(std::vector<CharRun>& runs, Counts length) {
  CharRun* varies = nullptr;
  uint64_t fixed = 0;
  for (CharRun& run : runs) {
    if (run.min == run.max) {
      fixed += run.min;
    } else if (varies != nullptr) {
      return !length.limits();
    } else {
      varies = &run;
    }
  }
  if (!length.limits()) return true;
  if (varies == nullptr || fixed > length.max) return false;
  const auto rest = length.without(static_cast<uint32_t>(fixed));
  varies->min = std::max(varies->min, rest.min), varies->max = std::min(varies->max, rest.max);
  return varies->min <= varies->max;
}

std::string key_of(const Facts& facts) {
  std::string key = fmt::format("{} {}", facts.length.min, facts.length.max);
  const auto add = [&](char kind, const std::string& text) {
    key += fmt::format(" {}{}:{}", kind, text.size(), text);
  };
  for (const std::string& pattern : facts.patterns) add('p', pattern);
  for (const std::string& pattern : facts.not_patterns) add('n', pattern);
  for (const Json* value : facts.differs)
    if (value->is_string()) add('d', value->get<std::string>());
  return key;
}

}  // namespace

Result<StateId> SchemaCompiler::string(const Facts& facts) {
  const Counts length = facts.length;
  const bool differs =
      std::any_of(facts.differs.begin(), facts.differs.end(), [](auto* v) { return v->is_string(); });
  if (facts.patterns.empty() && facts.not_patterns.empty() && !differs) {
    if (!length.limits()) return rules_.any_string();
    if (length.empty()) return a_.split({});
    const StateId quote = a_.byte('"', a_.end_of_rule());
    return a_.byte('"', a_.repeat(rules_.character(), length.min, length.max, quote));
  }
  const auto [entry, fresh] = string_rules_.try_emplace(key_of(facts), -1);
  if (fresh) {
    ASSIGN_OR_RETURN(const StateId inside, patterned(facts));
    entry->second = a_.byte('"', inside);
  }
  return entry->second;
}

// False for what cannot be excluded.
bool SchemaCompiler::add_parts(const Pattern& pattern, std::vector<const CharAutomaton*>& with,
                               std::vector<const CharAutomaton*>& without) const {
  with.push_back(&pattern.automaton);
  for (const CharAutomaton& ahead : pattern.with) with.push_back(&ahead);
  for (const CharAutomaton& ahead : pattern.without) without.push_back(&ahead);
  return pattern.with.empty() && pattern.without.empty();
}

Result<StateId> SchemaCompiler::patterned(const Facts& facts) {
  const auto parsed = [&](const std::string& text) -> Result<const Pattern*> {
    auto pattern = context_.pattern(text);
    if (!pattern.ok()) return invalid("pattern: {}", pattern.status().message());
    return pattern;
  };
  std::vector<const CharAutomaton*> with, without, unused;
  const Pattern* only = nullptr;
  for (const std::string& text : facts.patterns) {
    ASSIGN_OR_RETURN(only, parsed(text));
    add_parts(*only, with, without);
  }
  for (const std::string& text : facts.not_patterns) {
    ASSIGN_OR_RETURN(const Pattern* pattern, parsed(text));
    if (!add_parts(*pattern, without, unused))
      return invalid("not of a pattern with look-around is not supported");
  }
  std::vector<std::string> excluded;
  for (const Json* value : facts.differs)
    if (value->is_string()) context_.work().add(20 * excluded.emplace_back(value->get<std::string>()).size());
  if (context_.work().spent()) return invalid("{}", kTooMuchWork);
  const CharAutomaton others = automaton_of(excluded);
  if (!excluded.empty()) without.push_back(&others);
  ASSIGN_OR_RETURN(const Pattern* anything, parsed(""));
  if (with.empty()) with.push_back(&anything->automaton);

  const StateId quote = a_.byte('"', a_.end_of_rule());
  if (facts.length.empty()) return a_.split({});
  const bool single = with.size() == 1 && without.empty() && only != nullptr;
  if (single && only->runs) {
    auto runs = *only->runs;
    if (limit(runs, facts.length)) return strings_.runs(runs, quote);
  }
  std::vector<const CharAutomaton*> all = with;
  all.insert(all.end(), without.begin(), without.end());
  const auto dfa = determinized(all, context_.work());
  Counts length = facts.length;
  if (!dfa.ok()) {
    const bool small = single && !only->anchors_inside && with[0]->states.size() <= kMaxAmbiguousStates;
    if (!small || context_.work().spent()) return invalid("pattern: {}", dfa.status().message());
    return strings_.ambiguous(*with[0], length.min, length.max, quote);
  }
  const uint64_t wanted = ~uint64_t{0} >> (64 - with.size());  // there are 1 to kMaxPatterns
  // Longer ones than can be counted are not written.
  const auto most = static_cast<uint32_t>(kMaxCountedStates / dfa.value().states.size());
  if (length.min > most) return invalid("pattern and minLength together need too many states");
  if (length.max != kUnlimited) length.max = std::min(length.max, most);
  return strings_.deterministic(dfa.value(), length.min, length.max, [&](uint64_t taken) {
    return taken == wanted ? std::vector<StateId>{quote} : std::vector<StateId>();
  });
}

}  // namespace moesaic::grammar
