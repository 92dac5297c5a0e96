// The inline part of Markdown: emphasis, code, links, in the text of one line, as far as it has come.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moesaic::chat {

// Bits of a span's style.
enum Style : unsigned {
  kPlain = 0,
  kBold = 1,
  kItalic = 2,
  kCode = 4,
  kStrike = 8,
  kUnderline = 16,
  kDim = 32,
};

struct Span {
  std::string text;
  unsigned style = kPlain;
};

// In SGR sequences, each span's style ended behind it.
std::string styled(const std::vector<Span>& spans);

// Spans from the beginning of `text`, whose first `used` bytes they stand for. What could still become part
// of something that has not ended (an emphasis, a link) is left, unless nothing follows in its line:
// complete. So the spans do not depend on the pieces in which a line comes. What has no end within kMostHeld
// bytes is plain text.
struct InlineSpans {
  std::vector<Span> spans;
  size_t used = 0;
};
// before: the character before `text`; 0: none. style: of all of it.
InlineSpans inline_spans(std::string_view text, bool complete, char before = 0, unsigned style = kPlain);

inline constexpr size_t kMostHeld = 1000;

// How many characters like the one at `at` stand there in a row.
size_t run_length(std::string_view text, size_t at);

}  // namespace moesaic::chat
