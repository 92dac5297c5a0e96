#include "chat/markdown.h"

#include <algorithm>
#include <utility>

#include "chat/terminal_text.h"

namespace moesaic::chat {
namespace {

constexpr const char* kRule = "\xE2\x94\x80";        // U+2500
constexpr const char* kBullet = "\xE2\x80\xA2 ";     // U+2022
constexpr const char* kQuoteBar = "\xE2\x94\x82 ";   // U+2502
constexpr const char* kOpenBox = "\xE2\x98\x90 ";    // U+2610
constexpr const char* kTickedBox = "\xE2\x98\x91 ";  // U+2611
constexpr int kRuleColumns = 40;

bool only(std::string_view text, std::string_view characters) {
  return text.find_first_not_of(characters) == std::string_view::npos;
}

std::string repeated(const char* text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

}  // namespace

std::string Markdown::in_style(std::string_view text, unsigned style) const {
  return styled({{std::string(text), styles_ ? style : kPlain}});
}

std::string Markdown::add(std::string_view piece) {
  const std::string text = printable(piece);
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    line_ += text.substr(at, end == std::string::npos ? end : end - at);
    if (end == std::string::npos) {
      advance(false);
      break;
    }
    advance(true);
    end_line();
    at = end + 1;
  }
  return out_.take();
}

std::string Markdown::finish() {
  if (!line_.empty() || kind_ != Line::kBegin) {
    advance(true);
    if (kind_ == Line::kRow) rows_.push_back(line_);
  }
  end_table();
  std::string out = out_.finish();
  *this = Markdown(columns_, styles_);
  return out;
}

void Markdown::advance(bool complete) {
  while (kind_ == Line::kBegin) {
    if (!decide(complete)) return;
  }
  if (kind_ == Line::kText) put_text(complete);
  if (kind_ == Line::kCode && !line_.empty()) out_.verbatim(in_style(std::exchange(line_, {}), kCode));
}

void Markdown::end_line() {
  if (kind_ == Line::kRow)
    rows_.push_back(line_);
  else
    out_.text("\n");
  line_.clear();
  kind_ = Line::kBegin;
  inside_ = false;
  style_ = kPlain;
  before_ = 0;
}

void Markdown::put_text(bool complete) {
  if (!styles_) return out_.text(std::exchange(line_, {}));
  InlineSpans got = inline_spans(line_, complete, before_, style_);
  out_.text(styled(got.spans));
  if (got.used > 0) before_ = line_[got.used - 1];
  line_.erase(0, got.used);
}

// The line's text follows `skipped` bytes, in whose place `shown` stands.
bool Markdown::begin_text(size_t skipped, std::string_view shown, unsigned style) {
  out_.text(shown);
  line_.erase(0, skipped);
  style_ = style;
  return begin(Line::kText);
}

// The same of an item or a quotation, whose text may be a heading or the like itself.
bool Markdown::begin_item(size_t skipped, const std::string& shown) {
  out_.text(shown);
  line_.erase(0, skipped);
  return inside_ = true;
}

bool Markdown::begin(Line kind) {
  kind_ = kind;
  return true;
}

bool Markdown::decide(bool complete) {
  if (!fence_.empty()) return decide_in_code(complete);
  const size_t indent = std::min(line_.find_first_not_of(" \t"), line_.size());
  if (indent == line_.size() && !complete) return false;
  const char first = indent < line_.size() ? line_[indent] : '\0';
  if (!styles_ && first != '`' && first != '~') return begin(first == '|' ? Line::kCode : Line::kText);
  if (first == '|' && !inside_) return begin(Line::kRow);
  if (!inside_) end_table();
  if (first == '`' || first == '~') return decide_fence(complete, indent);
  if (first == '#') return decide_heading(complete, indent);
  if (first == '-' || first == '*' || first == '+' || first == '_') return decide_list(complete, indent);
  if (first >= '0' && first <= '9') return decide_number(complete, indent);
  if (first == '>') {
    if (indent + 1 == line_.size() && !complete) return false;
    const bool space = line_.size() > indent + 1 && line_[indent + 1] == ' ';
    return begin_item(indent + (space ? 2 : 1), line_.substr(0, indent) + in_style(kQuoteBar, kDim));
  }
  return begin_text();
}

// The line that ends the code is a fence of at least the same length, in a quotation or not.
bool Markdown::decide_in_code(bool complete) {
  const size_t indent = std::min(line_.find_first_not_of(" >"), line_.size());
  const std::string_view rest = std::string_view(line_).substr(indent);
  const size_t run = rest.empty() || rest[0] != fence_[0] ? 0 : run_length(rest, 0);
  const bool may_end = only(rest.substr(run), " ");
  if (may_end && !complete) return false;
  if (!may_end || run < fence_.size()) return begin(Line::kCode);
  fence_.clear();
  out_.verbatim(in_style(std::exchange(line_, {}), kDim));
  return begin(Line::kText);
}

bool Markdown::decide_fence(bool complete, size_t indent) {
  const size_t run = run_length(line_, indent);
  if (indent + run == line_.size() && !complete) return false;
  const bool info_is_code = line_[indent] == '`' && line_.find('`', indent + run) != std::string::npos;
  if (run < 3 || info_is_code) return begin_text();
  if (!complete) return false;
  fence_.assign(run, line_[indent]);
  out_.verbatim(in_style(std::exchange(line_, {}), kDim));
  return begin(Line::kText);
}

bool Markdown::decide_heading(bool complete, size_t indent) {
  const size_t run = run_length(line_, indent), end = indent + run;
  if (end == line_.size() && !complete) return false;
  if (run > 6 || (end < line_.size() && line_[end] != ' ')) return begin_text();
  const size_t text = std::min(line_.find_first_not_of(' ', end), line_.size());
  if (text == line_.size() && !complete) return false;
  return begin_text(text, "", run == 1 ? kBold | kUnderline : kBold);
}

// A bullet, a rule or an emphasis.
bool Markdown::decide_list(bool complete, size_t indent) {
  const std::string_view rest = std::string_view(line_).substr(indent);
  const char mark = rest[0];
  const auto marks = std::count(rest.begin(), rest.end(), mark);
  if (only(rest, std::string{mark, ' '})) {
    if (!complete) return false;
    if (marks >= 3 && mark != '+')
      return begin_text(line_.size(), in_style(repeated(kRule, std::min(kRuleColumns, columns_)), kDim));
  }
  if (mark == '_' || (rest.size() > 1 && rest[1] != ' ')) return begin_text();
  const std::string_view item = rest.substr(std::min<size_t>(2, rest.size()));
  const bool open = item.starts_with("[ ] "), ticked = item.starts_with("[x] ") || item.starts_with("[X] ");
  if (!complete && item.size() < 4 && std::string_view("[ ] ").substr(0, 1) == item.substr(0, 1))
    return false;
  const std::string before = line_.substr(0, indent);
  return begin_item(indent + 2 + (open || ticked ? 4 : 0), before + (open     ? kOpenBox
                                                                     : ticked ? kTickedBox
                                                                              : kBullet));
}

bool Markdown::decide_number(bool complete, size_t indent) {
  const size_t end = std::min(line_.find_first_not_of("0123456789", indent), line_.size());
  if (end + 1 >= line_.size() && end - indent <= 9 && !complete) return false;
  const bool item = end - indent <= 9 && end + 1 < line_.size() && (line_[end] == '.' || line_[end] == ')') &&
                    line_[end + 1] == ' ';
  return item ? begin_item(end + 2, line_.substr(0, end + 2)) : begin_text();
}

void Markdown::end_table() {
  if (!rows_.empty()) out_.verbatim(table(std::exchange(rows_, {}), columns_));
}

}  // namespace moesaic::chat
