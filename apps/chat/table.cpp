// Markdown's tables with aligned columns, in the width of the terminal.
#include <algorithm>
#include <numeric>

#include "base/strings.h"
#include "chat/markdown.h"
#include "chat/terminal_text.h"

namespace moesaic::chat {
namespace {

constexpr int kLeastColumn = 8;
constexpr size_t kMostColumns = 64;
constexpr const char* kBar = " \xE2\x94\x82 ";  // U+2502
constexpr const char* kCross = "\xE2\x94\xBC";  // U+253C
constexpr const char* kDash = "\xE2\x94\x80";   // U+2500

enum class Align { kLeft, kCenter, kRight };

struct CellLine {
  std::vector<Span> spans;
  int width = 0;
};
using Cell = std::vector<CellLine>;

constexpr std::string_view kSpaces = " \t";

// Bars behind a backslash are part of a cell, those in code are not: as GitHub has it.
std::vector<std::string> cells_of(const std::string& row) {
  std::vector<std::string> cells(1);
  std::string text(trimmed(row, kSpaces));
  text.erase(0, text.starts_with('|') ? 1 : 0);
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escaped = text[i] == '\\' && i + 1 < text.size() && text[i + 1] == '|';
    if (escaped)
      cells.back() += text[++i];
    else if (text[i] == '|')
      cells.emplace_back();
    else
      cells.back() += text[i];
  }
  if (cells.size() > 1 && trimmed(cells.back(), kSpaces).empty()) cells.pop_back();
  for (std::string& cell : cells) cell = std::string(trimmed(cell, kSpaces));
  return cells;
}

bool is_delimiter(const std::string& cell) {
  return cell.find('-') != std::string::npos && cell.find_first_not_of(":-") == std::string::npos;
}

Align align_of(const std::string& cell) {
  if (!cell.ends_with(':')) return Align::kLeft;
  return cell.starts_with(':') ? Align::kCenter : Align::kRight;
}

// Breaks a cell's text at spaces, and within words where these are too long.
class Wrapper {
 public:
  explicit Wrapper(int width) : width_(width) {}

  void add(const Span& span) {
    std::string_view text = span.text;
    while (!text.empty()) {
      if (text[0] == '\n') {
        new_line();
        text.remove_prefix(1);
        continue;
      }
      const size_t end = text[0] == ' ' ? 1 : std::min(text.find_first_of(" \n"), text.size());
      add_word(text.substr(0, end), span.style);
      text.remove_prefix(end);
    }
  }
  Cell take() { return std::move(cell_); }

 private:
  void new_line() { cell_.emplace_back(); }
  void put(std::string_view text, unsigned style) {
    cell_.back().spans.push_back({std::string(text), style});
    cell_.back().width += display_width(text);
  }
  void add_word(std::string_view word, unsigned style) {
    if (cell_.back().width + display_width(word) > width_ && cell_.back().width > 0) new_line();
    if (word == " " && cell_.back().width == 0) return;
    while (display_width(word) > width_) {
      const size_t part = std::max<size_t>(1, first_columns(word, width_).size());
      put(word.substr(0, part), style);
      new_line();
      word.remove_prefix(part);
    }
    put(word, style);
  }

  int width_;
  Cell cell_ = Cell(1);
};

Cell wrapped(const std::vector<Span>& spans, int width) {
  Wrapper wrapper(width);
  for (const Span& span : spans) wrapper.add(span);
  return wrapper.take();
}

int width_of(const std::vector<Span>& spans) {
  int widest = 0;
  for (const CellLine& line : wrapped(spans, 1 << 20)) widest = std::max(widest, line.width);
  return widest;
}

struct Table {
  std::vector<Align> align;
  std::vector<std::vector<std::vector<Span>>> rows;  // the first is the head
  std::vector<int> widths;
};

Table read_table(const std::vector<std::string>& lines) {
  Table t;
  for (const std::string& cell : cells_of(lines[1])) t.align.push_back(align_of(cell));
  t.widths.assign(t.align.size(), 1);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i == 1) continue;
    std::vector<std::string> cells = cells_of(lines[i]);
    cells.resize(t.align.size());
    auto& row = t.rows.emplace_back();
    for (size_t c = 0; c < cells.size(); ++c) {
      row.push_back(inline_spans(cells[c], true, 0, i == 0 ? kBold : kPlain).spans);
      t.widths[c] = std::max(t.widths[c], width_of(row.back()));
    }
  }
  return t;
}

// Takes from the widest columns until the table fits, or all are narrow.
void fit(std::vector<int>& widths, int columns) {
  const int bars = 3 * (static_cast<int>(widths.size()) - 1);
  for (;;) {
    const auto widest = std::max_element(widths.begin(), widths.end());
    const int excess = std::accumulate(widths.begin(), widths.end(), bars) - columns;
    if (excess <= 0 || *widest <= kLeastColumn) return;
    int second = kLeastColumn;
    for (auto w = widths.begin(); w != widths.end(); ++w) {
      if (w != widest) second = std::max(second, *w);
    }
    *widest = std::max(*widest - excess, std::min(second, *widest - 1));
  }
}

std::string padded(const CellLine& line, int width, Align align, bool last) {
  const int space = std::max(0, width - line.width);
  const int left = align == Align::kLeft ? 0 : align == Align::kRight ? space : space / 2;
  const int right = last ? 0 : space - left;
  return std::string(static_cast<size_t>(left), ' ') + styled(line.spans) +
         std::string(static_cast<size_t>(right), ' ');
}

std::string show_row(const Table& t, const std::vector<std::vector<Span>>& row) {
  std::vector<Cell> cells;
  size_t height = 1;
  for (size_t c = 0; c < row.size(); ++c) {
    cells.push_back(wrapped(row[c], t.widths[c]));
    height = std::max(height, cells.back().size());
  }
  std::string out;
  for (size_t line = 0; line < height; ++line) {
    for (size_t c = 0; c < cells.size(); ++c) {
      const CellLine part = line < cells[c].size() ? cells[c][line] : CellLine{};
      if (c > 0) out += styled({{kBar, kDim}});
      out += padded(part, t.widths[c], t.align[c], c + 1 == cells.size());
    }
    out += '\n';
  }
  return out;
}

std::string rule(const std::vector<int>& widths) {
  std::string out;
  for (size_t c = 0; c < widths.size(); ++c) {
    if (c > 0) out += std::string(kDash) + kCross + kDash;
    for (int i = 0; i < widths[c]; ++i) out += kDash;
  }
  return styled({{out, kDim}}) + "\n";
}

std::string as_they_are(const std::vector<std::string>& rows) {
  std::string out;
  for (const std::string& row : rows) out += styled(inline_spans(row, true).spans) + "\n";
  return out;
}

}  // namespace

std::string table(const std::vector<std::string>& rows, int columns) {
  const std::vector<std::string> second = rows.size() > 1 ? cells_of(rows[1]) : std::vector<std::string>();
  if (second.empty() || second.size() > kMostColumns ||
      !std::all_of(second.begin(), second.end(), is_delimiter))
    return as_they_are(rows);
  Table t = read_table(rows);
  fit(t.widths, columns);
  std::string out = show_row(t, t.rows[0]) + rule(t.widths);
  for (size_t i = 1; i < t.rows.size(); ++i) out += show_row(t, t.rows[i]);
  return out;
}

}  // namespace moesaic::chat
