#include <algorithm>
#include <map>
#include <optional>

#include "base/error.h"
#include "grammar/gbnf.h"
#include "text/utf8.h"

namespace moesaic::grammar {
namespace {

using Kind = GbnfNode::Kind;
using Text = std::u32string_view;

bool is_name(char32_t c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

int hex_value(char32_t c) {
  if (c >= '0' && c <= '9') return static_cast<int>(c - '0');
  const char32_t low = c | 32;
  return low >= 'a' && low <= 'f' ? static_cast<int>(low - 'a') + 10 : -1;
}

std::string shown(char32_t c) {
  return c > ' ' && c < 0x7F ? fmt::format("'{}'", static_cast<char>(c))
                             : fmt::format("U+{:04X}", uint32_t{c});
}

// Recursive descent; the first failure stays in status_ and ends every loop.
class GbnfParser {
 public:
  explicit GbnfParser(std::u32string text) : text_(std::move(text)) {}

  Result<Gbnf> parse();

 private:
  bool at_end() const { return !status_.ok() || at_ >= text_.size(); }
  char32_t peek(size_t ahead = 0) const {
    return status_.ok() && at_ + ahead < text_.size() ? text_[at_ + ahead] : 0;
  }
  bool take(char32_t c) { return !at_end() && text_[at_] == c && (++at_, true); }
  bool begins(Text text) const { return status_.ok() && Text(text_).substr(at_).starts_with(text); }
  void fail(const std::string& what);

  void space(bool newlines);
  bool goes_on_in_next_line();
  std::string name();
  int number_of(const std::string& name);
  void rule();
  GbnfNode choice(int depth);
  GbnfNode sequence(int depth);
  std::optional<GbnfNode> symbol(int depth);
  GbnfNode literal();
  GbnfNode bracket();
  GbnfNode group(int depth);
  GbnfNode quantified(GbnfNode node, bool newlines);
  uint32_t count();
  uint32_t character();
  uint32_t hex(int digits);

  std::u32string text_;
  size_t at_ = 0;
  Status status_;
  Gbnf grammar_;
  std::map<std::string, int> numbers_;
  std::vector<bool> defined_;
  size_t nodes_ = 0;
};

void GbnfParser::fail(const std::string& what) {
  if (!status_.ok()) return;
  const auto here = text_.begin() + static_cast<ptrdiff_t>(std::min(at_, text_.size()));
  status_ = invalid("line {}: {}", std::count(text_.begin(), here, U'\n') + 1, what);
}

// Comments too.
void GbnfParser::space(bool newlines) {
  while (!at_end()) {
    const char32_t c = peek();
    if (c == '#') {
      while (!at_end() && peek() != '\n') ++at_;
    } else if (c == ' ' || c == '\t' || (newlines && (c == '\n' || c == '\r'))) {
      ++at_;
    } else {
      break;
    }
  }
}

// XGrammar lets an alternative begin a line.
bool GbnfParser::goes_on_in_next_line() {
  const size_t before = at_;
  space(true);
  if (peek() == '|') return true;
  at_ = before;
  return false;
}

std::string GbnfParser::name() {
  std::string name;
  for (; is_name(peek()); ++at_) name += static_cast<char>(peek());
  if (name.empty() && at_end()) fail("the grammar ends where a rule's name is expected");
  if (name.empty()) fail(fmt::format("{} where a rule's name is expected", shown(peek())));
  return name;
}

int GbnfParser::number_of(const std::string& name) {
  const auto [entry, fresh] = numbers_.try_emplace(name, static_cast<int>(grammar_.names.size()));
  if (!fresh) return entry->second;
  if (grammar_.names.size() == kMaxGbnfRules) fail(fmt::format("more than {} rules", kMaxGbnfRules));
  grammar_.names.push_back(name);
  grammar_.rules.emplace_back();
  defined_.push_back(false);
  return entry->second;
}

void GbnfParser::rule() {
  const std::string called = name();
  if (!status_.ok()) return;
  const int number = number_of(called);
  space(false);
  if (!begins(U"::=")) return fail(fmt::format("the rule '{}' has no ::=", called.substr(0, 80)));
  at_ += 3;
  if (defined_[number]) return fail(fmt::format("the rule '{}' is there twice", called.substr(0, 80)));
  space(true);
  GbnfNode node = choice(0);
  grammar_.rules[number] = std::move(node);
  defined_[number] = true;
  if (!at_end() && peek() != '\n' && peek() != '\r')
    fail(fmt::format("{} is not expected here", shown(peek())));
}

GbnfNode GbnfParser::choice(int depth) {
  GbnfNode node{.kind = Kind::kChoice};
  for (bool more = true; more && status_.ok(); space(true)) {
    node.parts.push_back(sequence(depth));
    if (depth == 0) goes_on_in_next_line();
    more = take('|');
    if (!more) break;
  }
  return node;
}

GbnfNode GbnfParser::sequence(int depth) {
  GbnfNode node{.kind = Kind::kSequence};
  while (!at_end()) {
    std::optional<GbnfNode> next = symbol(depth);
    if (!next) break;
    if (++nodes_ > kMaxGbnfNodes) fail(fmt::format("more than {} symbols", kMaxGbnfNodes));
    node.parts.push_back(quantified(*std::move(next), depth > 0));
  }
  return node;
}

// Nothing where none begins.
std::optional<GbnfNode> GbnfParser::symbol(int depth) {
  const char32_t c = peek();
  if (c == '"') return literal();
  if (c == '[') return bracket();
  if (c == '(') return group(depth + 1);
  if (c == '.') return ++at_, GbnfNode{.kind = Kind::kSet, .set = complement({})};
  if (c == '<' || (c == '!' && peek(1) == '<')) return fail("tokens (<...>) are not supported"), GbnfNode();
  if (!is_name(c)) return {};
  return GbnfNode{.kind = Kind::kRule, .rule = number_of(name())};
}

GbnfNode GbnfParser::group(int depth) {
  ++at_;
  if (depth > kMaxGbnfNesting)
    fail(fmt::format("more than {} parentheses inside each other", kMaxGbnfNesting));
  if (peek() == '=' || peek() == '!') fail("look-ahead is not supported");
  space(true);
  GbnfNode node = choice(depth);
  if (status_.ok() && !take(')')) fail("a ( without its )");
  return node;
}

GbnfNode GbnfParser::literal() {
  ++at_;
  std::u32string text;
  while (!at_end() && peek() != '"') text += static_cast<char32_t>(character());
  if (!take('"')) fail("a \" without the one that ends it");
  return {.kind = Kind::kText, .text = utf8_of(text)};
}

GbnfNode GbnfParser::bracket() {
  ++at_;
  const bool negative = take('^');
  CharSet set;
  while (!at_end() && peek() != ']') {
    const uint32_t low = character();
    uint32_t high = low;
    if (peek() == '-' && peek(1) != ']') {
      ++at_;
      high = character();
    }
    if (low > high) fail("a range of characters that ends before it begins");
    set.push_back({low, high});
  }
  if (!take(']')) fail("a [ without its ]");
  set = normalized(std::move(set));
  return {.kind = Kind::kSet, .set = negative ? complement(set) : set};
}

uint32_t GbnfParser::hex(int digits) {
  uint32_t value = 0;
  for (; digits > 0; --digits, ++at_) {
    const int digit = hex_value(peek());
    if (digit < 0) return fail("an escape with too few hexadecimal digits"), 0;
    value = value * 16 + static_cast<uint32_t>(digit);
  }
  if (value > kLastChar || (value >= 0xD800 && value <= 0xDFFF)) fail("an escape that is no character");
  return value;
}

// Reads a character of a literal or of brackets; it may be escaped.
uint32_t GbnfParser::character() {
  const char32_t c = text_[at_++];
  if (c != '\\') return c;
  const char32_t escaped = peek();
  ++at_;
  switch (escaped) {
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    case 'x':
      return hex(2);
    case 'u':
      return hex(4);
    case 'U':
      return hex(8);
    default:
      break;
  }
  constexpr Text kThemselves = U"\\\"'[]^-/(){}.*+?|$";
  if (escaped == 0 || kThemselves.find(escaped) == Text::npos)
    fail(fmt::format("the escape \\{} is not known", shown(escaped)));
  return escaped;
}

uint32_t GbnfParser::count() {
  uint32_t value = 0;
  if (peek() < '0' || peek() > '9') fail("a count in { } that is no number");
  for (; peek() >= '0' && peek() <= '9' && value <= kMaxGbnfCount; ++at_) value = value * 10 + (peek() - '0');
  if (value > kMaxGbnfCount) fail(fmt::format("a count above {}", kMaxGbnfCount));
  return value;
}

// Operators behind a symbol, and space behind it and them. Several apply one after the other.
GbnfNode GbnfParser::quantified(GbnfNode node, bool newlines) {
  space(newlines);
  for (int operators = 0; !at_end(); ++operators) {
    GbnfNode repeated{.kind = Kind::kRepeat, .min = 0, .max = kUnlimited};
    if (take('+')) {
      repeated.min = 1;
    } else if (take('?')) {
      repeated.max = 1;
    } else if (take('{')) {
      if (peek() != ',') repeated.min = repeated.max = count();
      if (take(',')) repeated.max = peek() == '}' ? kUnlimited : count();
      if (!take('}') || repeated.min > repeated.max) fail("such a count in { } is not known");
    } else if (!take('*')) {
      break;
    }
    if (operators == kMaxGbnfNesting) fail("too many operators behind one symbol");
    repeated.parts.push_back(std::move(node));
    node = std::move(repeated);
    space(newlines);
  }
  return node;
}

Result<Gbnf> GbnfParser::parse() {
  for (space(true); !at_end(); space(true)) rule();
  if (!status_.ok()) return status_;
  const auto missing = std::find(defined_.begin(), defined_.end(), false);
  if (missing != defined_.end())
    return invalid("the rule '{}' is used and not there",
                   grammar_.names[missing - defined_.begin()].substr(0, 80));
  const auto root = numbers_.find("root");
  if (root == numbers_.end()) return invalid("there is no rule 'root' (root ::= ...)");
  grammar_.root = root->second;
  return std::move(grammar_);
}

}  // namespace

Result<Gbnf> parse_gbnf(std::string_view text) {
  if (text.size() > kMaxGbnfBytes)
    return invalid("{} bytes are too many (at most {})", text.size(), kMaxGbnfBytes);
  if (utf8_valid_prefix(text) != text.size()) return invalid("it is not UTF-8");
  return GbnfParser(code_points(text)).parse();
}

}  // namespace moesaic::grammar
