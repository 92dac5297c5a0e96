#include "chat/inline_markdown.h"

#include <algorithm>
#include <optional>

namespace moesaic::chat {
namespace {

constexpr size_t kNone = std::string_view::npos;

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == 0; }
bool is_word(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= 0x80 || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}
bool is_punctuation(char c) { return c > ' ' && c < 0x7F && !is_word(c); }
// A special character may begin a code span, an emphasis, a link or an escape.
bool is_special(char c) { return std::string_view("\\`*_~[<&$").find(c) != kNone; }

void append(std::vector<Span>& spans, std::string_view text, unsigned style) {
  if (text.empty()) return;
  if (!spans.empty() && spans.back().style == style)
    spans.back().text += text;
  else
    spans.push_back({std::string(text), style});
}

// One thing that begins at a special character.
class Reader {
 public:
  Reader(std::string_view text, bool complete, char before, unsigned style)
      : text_(text), complete_(complete), before_(before), style_(style) {}

  InlineSpans read();

 private:
  enum class Outcome { kDone, kPlainText, kWait };

  Outcome special();
  Outcome escape();
  Outcome code();
  Outcome emphasis();
  Outcome link();
  Outcome angle();
  Outcome entity();
  Outcome verbatim(std::string_view open, std::string_view close);

  // Finds `what` from `from` on, within reach of the span that begins at at_.
  size_t find(std::string_view what, size_t from) const { return window().find(what, from); }
  std::string_view window() const { return text_.substr(0, std::min(text_.size(), at_ + kMostHeld)); }
  // The answer for an end that is not there: it may still come, or it is missing.
  Outcome missing() const {
    return complete_ || text_.size() - at_ > kMostHeld ? Outcome::kPlainText : Outcome::kWait;
  }
  char at(size_t i) const { return i < text_.size() ? text_[i] : '\0'; }
  char previous(size_t i) const { return i > 0 ? text_[i - 1] : before_; }
  size_t code_run(size_t from, size_t length) const;
  std::optional<size_t> closing_run(size_t from, size_t length, bool& unsure) const;
  void plain_run();
  Outcome done(size_t end) {
    at_ = end;
    return Outcome::kDone;
  }

  std::string_view text_;
  bool complete_;
  char before_;
  unsigned style_;
  size_t at_ = 0;
  std::vector<Span> spans_;
};

Reader::Outcome Reader::verbatim(std::string_view open, std::string_view close) {
  const size_t end = find(close, at_ + open.size());
  if (end == kNone) return missing();
  append(spans_, text_.substr(at_, end + close.size() - at_), style_);
  return done(end + close.size());
}

// Mathematics, \( and \[, stays as it is.
Reader::Outcome Reader::escape() {
  if (at_ + 1 == text_.size()) return complete_ ? Outcome::kPlainText : Outcome::kWait;
  const char next = text_[at_ + 1];
  if (next == '(') return verbatim("\\(", "\\)");
  if (next == '[') return verbatim("\\[", "\\]");
  if (!is_punctuation(next) || next == ')' || next == ']') return Outcome::kPlainText;
  append(spans_, text_.substr(at_ + 1, 1), style_);
  return done(at_ + 2);
}

// Finds the beginning of a run of exactly `length` backticks.
size_t Reader::code_run(size_t from, size_t length) const {
  const std::string_view all = window();
  for (size_t i = all.find('`', from); i != kNone; i = all.find('`', i)) {
    const size_t run = run_length(all, i);
    if (run == length) return i;
    i += run;
  }
  return kNone;
}

Reader::Outcome Reader::code() {
  const size_t length = run_length(text_, at_), begin = at_ + length;
  if (begin == text_.size() && !complete_) return Outcome::kWait;
  const size_t end = code_run(begin, length);
  // The run may go on.
  if (end == kNone || (end + length == text_.size() && !complete_)) {
    if (missing() == Outcome::kWait) return Outcome::kWait;
  }
  if (end == kNone) {
    append(spans_, text_.substr(at_, length), style_);
    return done(begin);
  }
  std::string_view inside = text_.substr(begin, end - begin);
  if (inside.size() > 2 && inside.front() == ' ' && inside.back() == ' ')
    inside = inside.substr(1, inside.size() - 2);
  append(spans_, inside, style_ | kCode);
  return done(end + length);
}

// Finds the run that ends an emphasis of `length` characters. unsure: it depends on the text that follows.
std::optional<size_t> Reader::closing_run(size_t from, size_t length, bool& unsure) const {
  const std::string_view all = window();
  const char mark = text_[at_];
  for (size_t i = from; i < all.size();) {
    if (all[i] == '\\') {
      i += 2;
    } else if (all[i] == '`') {
      const size_t run = run_length(all, i), end = code_run(i + run, run);
      unsure = end == kNone && !complete_;
      if (unsure) return {};
      i = end == kNone ? i + run : end + run;
    } else if (all[i] == mark) {
      const size_t run = run_length(all, i);
      unsure = i + run == all.size() && (!complete_ || all.size() < text_.size());
      if (unsure) return {};
      const bool closes = !is_space(previous(i)) && (mark != '_' || !is_word(at(i + run)));
      if (closes && i > from && (run == length || (run == 3 && length < 3))) return i + run - length;
      i += run;
    } else {
      ++i;
    }
  }
  return {};
}

Reader::Outcome Reader::emphasis() {
  const char mark = text_[at_];
  const size_t length = run_length(text_, at_), begin = at_ + length;
  if (begin == text_.size() && !complete_) return Outcome::kWait;
  const bool opens = !is_space(at(begin)) && (mark != '_' || !is_word(previous(at_))) &&
                     (mark == '~' ? length == 2 : length <= 3);
  bool unsure = false;
  const auto end = opens ? closing_run(begin, length, unsure) : std::nullopt;
  if (opens && (unsure || !end) && missing() == Outcome::kWait) return Outcome::kWait;
  if (!end) {
    append(spans_, text_.substr(at_, length), style_);
    return done(begin);
  }
  const unsigned more = mark == '~' ? kStrike : (length != 2 ? kItalic : 0U) | (length >= 2 ? kBold : 0U);
  for (const Span& span : inline_spans(text_.substr(begin, *end - begin), true, mark, style_ | more).spans)
    append(spans_, span.text, span.style);
  return done(*end + length);
}

// [text](address): the text, and the address where that says more.
Reader::Outcome Reader::link() {
  const size_t middle = find("]", at_ + 1);
  if (middle == kNone) return missing();
  if (middle + 1 == text_.size()) return complete_ ? Outcome::kPlainText : Outcome::kWait;
  if (text_[middle + 1] != '(') return Outcome::kPlainText;
  const size_t end = find(")", middle);
  if (end == kNone) return missing();
  const std::string_view text = text_.substr(at_ + 1, middle - at_ - 1);
  const std::string_view address = text_.substr(middle + 2, end - middle - 2);
  for (const Span& span : inline_spans(text, true, '[', style_ | kUnderline).spans)
    append(spans_, span.text, span.style);
  if (address != text) append(spans_, " (" + std::string(address) + ")", style_ | kDim);
  return done(end + 1);
}

// <https://...>; and <br>, which models write in tables.
Reader::Outcome Reader::angle() {
  const size_t end = find(">", at_);
  const size_t space = window().find_first_of(" <", at_ + 1);
  if (end == kNone && space == kNone) return missing();
  if (end == kNone || space < end) {
    const std::string_view head = text_.substr(at_, 6);
    if (head != "<br />") return Outcome::kPlainText;
    append(spans_, "\n", style_);
    return done(at_ + 6);
  }
  const std::string_view inside = text_.substr(at_ + 1, end - at_ - 1);
  if (inside == "br" || inside == "br/") {
    append(spans_, "\n", style_);
    return done(end + 1);
  }
  if (!inside.starts_with("https://") && !inside.starts_with("http://")) return Outcome::kPlainText;
  append(spans_, inside, style_ | kUnderline);
  return done(end + 1);
}

Reader::Outcome Reader::entity() {
  struct Entity {
    std::string_view name, text;
  };
  constexpr Entity kEntities[] = {{"&amp;", "&"},   {"&lt;", "<"},  {"&gt;", ">"},
                                  {"&quot;", "\""}, {"&#39;", "'"}, {"&nbsp;", "\xC2\xA0"}};
  const std::string_view rest = text_.substr(at_);
  for (const auto& [name, text] : kEntities) {
    if (rest.starts_with(name)) {
      append(spans_, text, style_);
      return done(at_ + name.size());
    }
    if (!complete_ && name.starts_with(rest)) return Outcome::kWait;
  }
  return Outcome::kPlainText;
}

Reader::Outcome Reader::special() {
  switch (text_[at_]) {
    case '\\':
      return escape();
    case '`':
      return code();
    case '[':
      return link();
    case '<':
      return angle();
    case '&':
      return entity();
    case '$':
      if (at_ + 1 == text_.size() && !complete_) return Outcome::kWait;
      return at(at_ + 1) == '$' ? verbatim("$$", "$$") : Outcome::kPlainText;
    default:
      return emphasis();
  }
}

void Reader::plain_run() {
  size_t end = at_;
  while (end < text_.size() && !is_special(text_[end])) ++end;
  append(spans_, text_.substr(at_, end - at_), style_);
  at_ = end;
}

InlineSpans Reader::read() {
  while (at_ < text_.size()) {
    if (!is_special(text_[at_])) {
      plain_run();
      continue;
    }
    const Outcome outcome = special();
    if (outcome == Outcome::kWait) break;
    if (outcome == Outcome::kPlainText) append(spans_, text_.substr(at_++, 1), style_);
  }
  return {std::move(spans_), at_};
}

std::string sgr(unsigned style) {
  std::string codes;
  const auto add = [&](unsigned bit, const char* code) {
    if ((style & bit) != 0) codes += (codes.empty() ? "" : ";") + std::string(code);
  };
  add(kBold, "1"), add(kDim, "2"), add(kItalic, "3"), add(kUnderline, "4"), add(kStrike, "9"),
      add(kCode, "36");
  return codes;
}

}  // namespace

std::string styled(const std::vector<Span>& spans) {
  std::string out;
  for (const Span& span : spans)
    out += span.style == kPlain ? span.text : "\x1b[" + sgr(span.style) + "m" + span.text + "\x1b[0m";
  return out;
}

size_t run_length(std::string_view text, size_t at) {
  size_t end = at;
  while (end < text.size() && text[end] == text[at]) ++end;
  return end - at;
}

InlineSpans inline_spans(std::string_view text, bool complete, char before, unsigned style) {
  return Reader(text, complete, before, style).read();
}

}  // namespace moesaic::chat
