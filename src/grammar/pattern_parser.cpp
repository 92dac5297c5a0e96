#include <algorithm>
#include <memory>

#include "base/error.h"
#include "grammar/pattern.h"

namespace moesaic::grammar {
namespace {

constexpr int kMaxNesting = 64;
constexpr uint32_t kMaxCount = 10'000;
constexpr size_t kMaxStates = 50'000;

const CharSet kDigits = {{'0', '9'}};
const CharSet kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CharSet kSpace = {{'\t', '\r'}, {' ', ' '}};
const CharSet kNewlines = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
const CharSet kAny = {{0, 0xD7FF}, {0xE000, kLastChar}};

struct Node {
  enum class Kind { kSet, kSequence, kChoice, kRepeat };
  Kind kind = Kind::kSequence;
  CharSet set;
  std::vector<Node> parts;
  uint32_t min = 0, max = 0;
};

// Recursive descent; the first failure stays in status_ and ends every loop.
class Parser {
 public:
  explicit Parser(std::u32string text) : text_(std::move(text)) {}

  Result<Node> parse() {
    Node node = choice(0);
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
  Node term(int depth);
  Node group(int depth);
  Node quantified(Node atom);
  uint32_t number();
  CharSet escape(bool in_class);
  CharSet bracket();
  CharSet hex(int digits);

  std::u32string text_;
  size_t at_ = 0;
  Status status_;
};

Node set_node(CharSet set) { return {.kind = Node::Kind::kSet, .set = std::move(set)}; }
Node anything() {
  return {.kind = Node::Kind::kRepeat, .parts = {set_node(kAny)}, .min = 0, .max = kUnlimited};
}

Node Parser::choice(int depth) {
  Node node{.kind = Node::Kind::kChoice};
  do node.parts.push_back(alternative(depth));
  while (take('|'));
  return node;
}

// Where the whole pattern is one of these, what ^ and $ do not hold may have anything around it.
Node Parser::alternative(int depth) {
  Node node;
  const bool outermost = depth == 0, from_start = outermost && take('^');
  if (outermost && !from_start) node.parts.push_back(anything());
  bool to_end = false;
  while (!at_end() && !is('|') && !is(')') && !to_end) {
    to_end = outermost && is('$') && (at_ + 1 == text_.size() || text_[at_ + 1] == '|');
    if (to_end)
      ++at_;
    else
      node.parts.push_back(quantified(term(depth)));
  }
  if (outermost && !to_end) node.parts.push_back(anything());
  return node;
}

Node Parser::term(int depth) {
  if (is('^') || is('$')) fail("^ or $ inside the pattern");
  if (is('*') || is('+') || is('?') || is('{')) fail("a quantifier with nothing before it");
  if (at_end()) return {};
  const char32_t c = text_[at_++];
  if (c == '(') return group(depth + 1);
  if (c == '[') return set_node(bracket());
  if (c == '\\') return set_node(escape(false));
  return set_node(c == '.' ? complement(kNewlines) : CharSet{{c, c}});
}

Node Parser::group(int depth) {
  if (depth > kMaxNesting) fail("nesting this deep");
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

uint32_t Parser::number() {
  uint32_t value = 0;
  for (; peek() >= '0' && peek() <= '9' && value <= kMaxCount; ++at_) value = value * 10 + (peek() - '0');
  if (value > kMaxCount) fail("a count above 10,000");
  return value;
}

Node Parser::quantified(Node atom) {
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
  node.parts.push_back(std::move(atom));
  return node;
}

CharSet Parser::hex(int digits) {
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

CharSet Parser::escape(bool in_class) {
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
  const bool word = c < 128 && (isalnum(static_cast<int>(c)) != 0 || c == '_');
  if (word && !(in_class && c == 'b'))
    return --at_, fail("this escape (\\b, \\B, \\p, \\c, \\k, \\1)"), CharSet();
  return word ? CharSet{{'\b', '\b'}} : CharSet{{c, c}};
}

CharSet Parser::bracket() {
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
      const bool single = from.size() == 1 && from[0].low == from[0].high && to.size() == 1;
      if (!single || from[0].low > to[0].low) return fail("such a range"), CharSet();
      from[0].high = to[0].low;
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
  CharAutomaton automaton{.states = {{}}};

  bool full() const { return automaton.states.size() > kMaxStates; }
  int add(CharAutomaton::State state) {
    if (full()) return 0;
    automaton.states.push_back(std::move(state));
    return static_cast<int>(automaton.states.size()) - 1;
  }
  int build(const Node& node, int next) {
    switch (node.kind) {
      case Node::Kind::kSet:
        return add({.steps = {{node.set, next}}});
      case Node::Kind::kRepeat:
        return repeat(node, next);
      case Node::Kind::kChoice:
        return choice(node, next);
      case Node::Kind::kSequence:
        break;
    }
    for (size_t i = node.parts.size(); i-- > 0;) next = build(node.parts[i], next);
    return next;
  }

 private:
  int choice(const Node& node, int next) {
    CharAutomaton::State state;
    for (const Node& part : node.parts) state.skips.push_back(build(part, next));
    return add(std::move(state));
  }
  int repeat(const Node& node, int next) {
    const Node& body = node.parts[0];
    if (node.max == kUnlimited) {
      const int loop = add({.skips = {next}}), again = build(body, loop);
      automaton.states[loop].skips.push_back(again);
      next = loop;
    } else {
      const int end = next;
      for (uint32_t i = node.min; i < node.max && !full(); ++i)
        next = add({.skips = {build(body, next), end}});
    }
    for (uint32_t i = 0; i < node.min && !full(); ++i) next = build(body, next);
    return next;
  }
};

}  // namespace

Result<CharAutomaton> parse_pattern(std::string_view pattern) {
  ASSIGN_OR_RETURN(const Node node, Parser(code_points(pattern)).parse());
  Builder builder;
  builder.automaton.start = builder.build(node, 0);
  if (builder.full()) return invalid("it is too large: its counts multiply to over {} states", kMaxStates);
  return std::move(builder.automaton);
}

}  // namespace moesaic::grammar
