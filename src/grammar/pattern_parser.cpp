#include <algorithm>
#include <map>

#include "base/error.h"
#include "grammar/char_dfa.h"
#include "grammar/look_ahead.h"
#include "grammar/pattern.h"

namespace moesaic::grammar {
namespace {

constexpr int kMaxNesting = 64;
constexpr uint32_t kMaxCount = 10'000;
constexpr size_t kMaxStates = 50'000;              // the automata of a pattern together
constexpr uint64_t kByteWork = 8, kStateWork = 3;  // steps

const CharSet kDigits = {{'0', '9'}};
const CharSet kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
// ECMA 262's, so that what is no space for one reader is none for another.
const CharSet kSpace = {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680},
                        {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                        {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const CharSet kNewlines = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
const CharSet kAny = {{0, 0xD7FF}, {0xE000, kLastChar}};

struct Node {
  enum class Kind { kSet, kSequence, kChoice, kRepeat, kTextBegin, kTextEnd, kAhead };
  Kind kind = Kind::kSequence;
  int set = -1;  // its number
  std::vector<Node> parts;
  uint32_t min = 0, max = 0;  // kAhead: min is 1 where it must hold
};

// Recursive descent; the first failure stays in status_ and ends every loop.
class PatternParser {
 public:
  explicit PatternParser(std::u32string text) : text_(std::move(text)) {}

  // Look-ahead at the beginning, with whether it must hold.
  std::vector<std::pair<bool, Node>> ahead;
  bool anchors_inside = false;
  std::vector<CharSet> sets;  // each once

  // A pattern inside a group matches as it stands; only around the outermost one may anything stand.
  Result<Node> parse(Extent extent) {
    Node node = choice(extent == Extent::kWhole ? 1 : 0);
    if (!ahead.empty() && node.parts.size() > 1) fail("a look-around beside an alternative");
    if (status_.ok() && !at_end()) fail("a ) without its (");
    if (!status_.ok()) return status_;
    return node;
  }

 private:
  bool at_end() const { return !status_.ok() || at_ >= text_.size(); }
  char32_t peek() const { return at_end() ? 0 : text_[at_]; }
  bool is(char32_t c) const { return !at_end() && text_[at_] == c; }
  bool take(char32_t c) { return is(c) && (++at_, true); }
  void fail(std::string_view what) {
    if (status_.ok()) status_ = invalid("{} at character {} is not supported", what, at_ + 1);
  }

  Node choice(int depth);
  Node alternative(int depth);
  void look_ahead();
  Node look_ahead_inside(int depth);
  bool begins(std::u32string_view text) const {
    return status_.ok() && std::u32string_view(text_).substr(at_).starts_with(text);
  }
  Node term(int depth);
  Node group(int depth);
  Node quantified(int depth);
  uint32_t number();
  CharSet escape(bool in_class);
  CharSet bracket();
  CharSet hex(int digits);
  Node set_node(CharSet set);
  Node anything();

  std::map<CharSet, int> numbers_;  // index in sets
  std::u32string text_;
  size_t at_ = 0;
  int looks_ahead_ = 0, inside_ahead_ = 0;  // look-ahead inside so far, and around this place
  Status status_;
};

Node PatternParser::set_node(CharSet set) {
  const auto [entry, fresh] = numbers_.try_emplace(std::move(set), static_cast<int>(sets.size()));
  if (fresh) sets.push_back(entry->first);
  return {.kind = Node::Kind::kSet, .set = entry->second};
}
Node PatternParser::anything() {
  return {.kind = Node::Kind::kRepeat, .parts = {set_node(kAny)}, .min = 0, .max = kUnlimited};
}

Node PatternParser::choice(int depth) {
  Node node{.kind = Node::Kind::kChoice};
  do node.parts.push_back(alternative(depth));
  while (take('|'));
  return node;
}

// Where the whole pattern is one of these, what ^ and $ do not hold may have anything around it.
Node PatternParser::alternative(int depth) {
  Node node;
  const bool outermost = depth == 0, from_start = outermost && take('^');
  while (from_start && (begins(U"(?!") || begins(U"(?="))) look_ahead();
  if (outermost && !from_start) node.parts.push_back(anything());
  bool to_end = false;
  while (!at_end() && !is('|') && !is(')') && !to_end) {
    to_end = outermost && is('$') && (at_ + 1 == text_.size() || text_[at_ + 1] == '|');
    if (to_end)
      ++at_;
    else
      node.parts.push_back(quantified(depth));
  }
  if (outermost && !to_end) node.parts.push_back(anything());
  return node;
}

// A look-ahead is about the whole rest: anything may follow its text.
void PatternParser::look_ahead() {
  const bool must = text_[at_ + 2] == '=';
  at_ += 3;
  Node node{.kind = Node::Kind::kSequence};
  node.parts.push_back(choice(1));
  if (status_.ok() && !take(')')) fail("a ( without its )");
  node.parts.push_back(anything());
  ahead.emplace_back(must, std::move(node));
}

Node PatternParser::look_ahead_inside(int depth) {
  Node node{.kind = Node::Kind::kAhead, .parts = {{}}, .min = text_[at_ + 1] == '=' ? 1U : 0U};
  at_ += 2;
  ++looks_ahead_, ++inside_ahead_;
  node.parts[0].parts.push_back(choice(depth));
  node.parts[0].parts.push_back(anything());
  --inside_ahead_;
  if (status_.ok() && !take(')')) fail("a ( without its )");
  return node;
}

Node PatternParser::term(int depth) {
  if (is('^') && inside_ahead_ > 0) fail("a ^ in a look-around here");
  if (is('^') || is('$')) {
    anchors_inside = true;
    return {.kind = text_[at_++] == '^' ? Node::Kind::kTextBegin : Node::Kind::kTextEnd};
  }
  if (is('*') || is('+') || is('?') || is('{')) fail("a quantifier with nothing before it");
  if (at_end()) return {};
  const char32_t c = text_[at_++];
  if (c == '(') return group(depth + 1);
  if (c == '[') return set_node(bracket());
  if (c == '\\') return set_node(escape(false));
  return set_node(c == '.' ? complement(kNewlines) : CharSet{{c, c}});
}

Node PatternParser::group(int depth) {
  if (depth > kMaxNesting) fail("nesting this deep");
  if (begins(U"?=") || begins(U"?!")) return look_ahead_inside(depth);
  if (take('?')) {
    if (is('<') && at_ + 1 < text_.size() && text_[at_ + 1] != '=' && text_[at_ + 1] != '!') {
      while (!at_end() && !take('>')) ++at_;
    } else if (!take(':')) {
      fail("a look-around or flag (?");
    }
  }
  Node node = choice(depth);
  if (status_.ok() && !take(')')) fail("a ( without its )");
  return node;
}

uint32_t PatternParser::number() {
  uint32_t value = 0;
  for (; peek() >= '0' && peek() <= '9' && value <= kMaxCount; ++at_) value = value * 10 + (peek() - '0');
  if (value > kMaxCount) fail("a count above 10,000");
  return value;
}

// (x?){n,m} and the like as one repetition.
void simplify(Node& node) {
  Node& body = node.parts[0];
  const bool nested = body.kind == Node::Kind::kChoice && body.parts.size() == 1 &&
                      body.parts[0].kind == Node::Kind::kSequence && body.parts[0].parts.size() == 1 &&
                      body.parts[0].parts[0].kind == Node::Kind::kRepeat;
  if (!nested) return;
  Node inner = std::move(body.parts[0].parts[0]);
  const bool plain = inner.min <= 1 && (inner.max == 1 || inner.max == kUnlimited);
  if (plain && node.max > 0) {
    node.max = inner.max == 1 ? node.max : kUnlimited;
    node.min = inner.min == 0 ? 0 : node.min;
    inner = Node(std::move(inner.parts[0]));
  }
  body = std::move(inner);
}

Node PatternParser::quantified(int depth) {
  const int before = looks_ahead_;
  Node atom = term(depth);
  Node node{.kind = Node::Kind::kRepeat, .min = 0, .max = kUnlimited};
  if (take('+')) {
    node.min = 1;
  } else if (take('?')) {
    node.max = 1;
  } else if (take('{')) {
    if (peek() < '0' || peek() > '9') fail("a { that begins no count");
    node.min = node.max = number();
    if (take(',')) node.max = is('}') ? kUnlimited : number();
    if (!take('}') || node.min > node.max) fail("such a count");
  } else if (!take('*')) {
    return atom;
  }
  take('?');  // lazy: the same strings
  if (is('*') || is('+') || is('?') || is('{')) fail("a quantifier of a quantifier");
  const bool anchor = atom.kind == Node::Kind::kTextBegin || atom.kind == Node::Kind::kTextEnd;
  if (anchor) fail("a quantifier with nothing before it");
  if (looks_ahead_ != before && node.max == kUnlimited) fail("a look-around in a repetition without end");
  node.parts.push_back(std::move(atom));
  simplify(node);
  return node;
}

CharSet PatternParser::hex(int digits) {
  uint32_t value = 0;
  for (; digits > 0; --digits, ++at_) {
    const char32_t c = peek();
    const bool digit = c >= '0' && c <= '9', letter = (c | 32) >= 'a' && (c | 32) <= 'f';
    if (!digit && !letter) fail("such an escape");
    value = value * 16 + (digit ? c - '0' : (c | 32) - 'a' + 10);
  }
  if (value >= 0xD800 && value <= 0xDFFF) fail("a surrogate");
  return {{value, value}};
}

CharSet PatternParser::escape(bool in_class) {
  constexpr std::u32string_view kNames = U"tnvfr0", kMeanings{U"\t\n\v\f\r\0", 6};
  if (at_end()) return fail("a \\ at the end"), CharSet();
  const char32_t c = text_[at_++];
  if (const size_t at = kNames.find(c); at != std::u32string_view::npos)
    return {{kMeanings[at], kMeanings[at]}};
  switch (c) {
    case 'd':
      return kDigits;
    case 'D':
      return complement(kDigits);
    case 'w':
      return kWord;
    case 'W':
      return complement(kWord);
    case 's':
      return kSpace;
    case 'S':
      return complement(kSpace);
    case 'x':
      return hex(2);
    case 'u':
      return hex(4);
    default:
      break;
  }
  const bool word = c < 128 && isalnum(static_cast<int>(c)) != 0;
  if (word && !(in_class && c == 'b'))
    return --at_, fail("this escape (\\b, \\B, \\p, \\c, \\k, \\1)"), CharSet();
  return word ? CharSet{{'\b', '\b'}} : CharSet{{c, c}};
}

CharSet PatternParser::bracket() {
  const bool negative = take('^');
  CharSet set;
  const auto member = [&]() -> CharSet {
    if (take('\\')) return escape(true);
    const char32_t c = text_[at_++];
    return {{c, c}};
  };
  while (!at_end() && !is(']')) {
    CharSet from = member();
    const bool range = is('-') && at_ + 1 < text_.size() && text_[at_ + 1] != ']';
    if (range && status_.ok()) {
      ++at_;
      const CharSet to = member();
      const auto single = [](const CharSet& s) { return s.size() == 1 && s[0].low == s[0].high; };
      if (!single(from) || !single(to)) {  // no range: [\w-.] has a hyphen
        from.push_back({'-', '-'});
        from.insert(from.end(), to.begin(), to.end());
      } else if (from[0].low > to[0].low) {
        return fail("such a range"), CharSet();
      } else {
        from[0].high = to[0].low;
      }
    }
    set.insert(set.end(), from.begin(), from.end());
  }
  if (!take(']')) fail("a [ without its ]");
  set = normalized(std::move(set));
  return negative ? complement(set) : set;
}

// Back to front, as Automaton.
class Builder {
 public:
  CharAutomaton automaton{.states = {{}}, .sets = {}};
  Status failure;  // a look-ahead's

  // states: those that other automata of the pattern have already.
  Builder(const std::vector<CharSet>& sets, size_t states, Work& work)
      : sets_(sets), states_(states), work_(work) {}

  bool full() const { return states_ + automaton.states.size() > kMaxStates; }
  bool stopped() const { return full() || work_.spent() || !failure.ok(); }
  int add(CharAutomaton::State state) {
    if (full()) return 0;
    work_.add(kStateWork);
    automaton.states.push_back(std::move(state));
    return static_cast<int>(automaton.states.size()) - 1;
  }
  int build(const Node& node, int next) {
    work_.add(1);
    if (stopped()) return 0;
    switch (node.kind) {
      case Node::Kind::kSet:
        return add({.steps = {{number(node.set), next}}});
      case Node::Kind::kTextBegin:
        return add({.skips = {next}, .where = CharAutomaton::Where::kAtBegin});
      case Node::Kind::kTextEnd:
        return add({.skips = {next}, .where = CharAutomaton::Where::kAtEnd});
      case Node::Kind::kRepeat:
        return repeat(node, next);
      case Node::Kind::kChoice:
        return choice(node, next);
      case Node::Kind::kAhead:
        return ahead(node, next);
      case Node::Kind::kSequence:
        break;
    }
    for (size_t i = node.parts.size(); i-- > 0;) next = build(node.parts[i], next);
    return next;
  }

 private:
  int number(int set) {
    const auto [entry, fresh] = numbers_.try_emplace(set, static_cast<int>(automaton.sets.size()));
    if (fresh) automaton.sets.push_back(sets_[set]), work_.add(sets_[set].size());
    return entry->second;
  }
  int choice(const Node& node, int next) {
    CharAutomaton::State state;
    for (const Node& part : node.parts) {
      const int way = build(part, next);
      if (state.skips.empty() || state.skips.back() != way) state.skips.push_back(way);
    }
    return add(std::move(state));
  }
  // A body that adds nothing, as a{0}, is there once.
  int repeat(const Node& node, int next) {
    const Node& body = node.parts[0];
    if (node.max == kUnlimited) {
      const int loop = add({.skips = {next}}), again = build(body, loop);
      automaton.states[loop].skips.push_back(again);
      next = loop;
    } else {
      const int end = next;
      for (uint32_t i = node.min; i < node.max && !stopped(); ++i) {
        const int once = build(body, next);
        if (once == next) break;
        next = add({.skips = {once, end}});
      }
    }
    for (uint32_t i = 0; i < node.min && !stopped(); ++i) {
      const int once = build(body, next);
      if (once == next) break;
      next = once;
    }
    return next;
  }

  int ahead(const Node& node, int next);

  const std::vector<CharSet>& sets_;
  const size_t states_;
  Work& work_;
  std::map<int, int> numbers_;  // index in the automaton's sets
};

// Adds the automaton's states to `states`.
Result<CharAutomaton> built(const Node& node, const std::vector<CharSet>& sets, size_t& states, Work& work) {
  Builder builder(sets, states, work);
  builder.automaton.start = builder.build(node, 0);
  if (builder.full()) return invalid("it is too large: its counts multiply to over {} states", kMaxStates);
  if (work.spent()) return invalid("{}", kTooMuchWork);
  RETURN_IF_ERROR(builder.failure);
  states += builder.automaton.states.size();
  return std::move(builder.automaton);
}

int Builder::ahead(const Node& node, int next) {
  size_t states = states_ + automaton.states.size();
  const auto parsed = built(node.parts[0], sets_, states, work_);
  if (!parsed.ok()) return failure = parsed.status(), 0;
  const auto rest = determinized({&parsed.value()}, work_);
  if (!rest.ok()) return failure = rest.status(), 0;
  return looking_ahead(
      automaton, next, rest.value(), node.min == 1, work_,
      [&](CharAutomaton::State state) { return add(std::move(state)); }, [&] { return stopped(); });
}

// Sequences of sets and of their repetitions.
bool add_runs(const Node& node, const std::vector<CharSet>& sets, std::vector<CharRun>& runs) {
  const bool single = node.kind == Node::Kind::kChoice && node.parts.size() == 1;
  if (node.kind == Node::Kind::kSequence || single)
    return std::all_of(node.parts.begin(), node.parts.end(),
                       [&](const Node& n) { return add_runs(n, sets, runs); });
  if (node.kind == Node::Kind::kSet) return runs.push_back({sets[node.set], 1, 1}), true;
  if (node.kind != Node::Kind::kRepeat) return false;
  std::vector<CharRun> body;
  if (!add_runs(node.parts[0], sets, body) || body.size() != 1 || body[0].min != 1 || body[0].max != 1)
    return false;
  return runs.push_back({body[0].set, node.min, node.max}), true;
}

bool disjoint(const CharSet& a, const CharSet& b) {
  for (auto x = a.begin(), y = b.begin(); x != a.end() && y != b.end();) {
    if (x->low <= y->high && y->low <= x->high) return false;
    x->high < y->high ? ++x : ++y;
  }
  return true;
}

std::optional<std::vector<CharRun>> runs_of(const Node& node, const std::vector<CharSet>& sets, Work& work) {
  std::vector<CharRun> runs;
  if (!add_runs(node, sets, runs) || runs.size() > 100) return std::nullopt;
  for (size_t i = 0; i < runs.size(); ++i) {
    bool goes_on = runs[i].min != runs[i].max;
    for (size_t j = i + 1; j < runs.size() && goes_on; ++j) {
      work.add(runs[i].set.size() / 4 + runs[j].set.size() / 4);
      if (!disjoint(runs[i].set, runs[j].set)) return std::nullopt;
      goes_on = runs[j].min == 0;
    }
  }
  return runs;
}

}  // namespace

Result<Pattern> parse_pattern(std::string_view text, Work& work, Extent extent) {
  if (text.size() > kMaxPatternBytes)
    return invalid("{} bytes are too many (at most {})", text.size(), kMaxPatternBytes);
  work.add(kByteWork * text.size());
  PatternParser parser(code_points(text));
  ASSIGN_OR_RETURN(const Node node, parser.parse(extent));
  Pattern pattern;
  size_t states = 0;
  pattern.anchors_inside = parser.anchors_inside;
  ASSIGN_OR_RETURN(pattern.automaton, built(node, parser.sets, states, work));
  for (const auto& [must, ahead] : parser.ahead) {
    ASSIGN_OR_RETURN((must ? pattern.with : pattern.without).emplace_back(),
                     built(ahead, parser.sets, states, work));
  }
  if (parser.ahead.empty()) pattern.runs = runs_of(node, parser.sets, work);
  return pattern;
}

}  // namespace moesaic::grammar
