// The Markdown of an answer as a terminal shows it, while it comes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "chat/inline_markdown.h"
#include "chat/word_wrap.h"

namespace moesaic::chat {

// Styles what is complete and takes nothing back: text goes out as soon as it can mean only one thing, so a
// paragraph streams, an emphasis comes when it ends and a table when its last row has come. What goes out
// does not depend on the pieces. GitHub's Markdown as models write it: headings, emphasis, code, lists,
// quotes, rules, links and tables; HTML and mathematics stay as they are. Control characters do not get
// through (printable()).
class Markdown {
 public:
  // columns: of the terminal. Text is broken between words, and tables keep to them. styles: false leaves the
  // Markdown as it is.
  explicit Markdown(int columns, bool styles = true) : columns_(columns), styles_(styles), out_(columns) {}

  // A further piece of the text; what is to be printed now.
  std::string add(std::string_view piece);
  // The text has ended; what is left, ready for the next text.
  std::string finish();

 private:
  enum class Line { kBegin, kText, kCode, kRow };

  void advance(bool complete);
  void end_line();
  // Tells by a line's beginning which kind it is; false: it is not clear yet.
  bool decide(bool complete);
  bool decide_in_code(bool complete);
  bool decide_fence(bool complete, size_t indent);
  bool decide_heading(bool complete, size_t indent);
  bool decide_list(bool complete, size_t indent);
  bool decide_number(bool complete, size_t indent);
  // These tell how the line begins, and give true.
  bool begin(Line kind);
  bool begin_text(size_t skipped = 0, std::string_view shown = {}, unsigned style = kPlain);
  bool begin_item(size_t skipped, const std::string& shown);
  void put_text(bool complete);
  void end_table();

  std::string in_style(std::string_view text, unsigned style) const;

  int columns_;
  bool styles_;
  WordWrap out_;
  std::string line_;  // the part of the current line that has not gone out
  Line kind_ = Line::kBegin;
  bool inside_ = false;  // an item or a quotation: its mark has gone out
  unsigned style_ = kPlain;
  char before_ = 0;
  std::string fence_;  // the fence that opened the code; empty: none
  std::vector<std::string> rows_;
};

// The lines of a table, if the second one says how its columns are aligned; else as they are.
std::string table(const std::vector<std::string>& rows, int columns);

}  // namespace moesaic::chat
