// Long texts in a line that is edited: each stands there as a short name, and is put in its place when the
// line is sent. So a message of forty lines or a megabyte can be edited as one line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moesaic::chat {

class Pastes {
 public:
  // The text itself, if it fits into a line; else a name for it: "[paste 1: 40 lines]".
  std::string shown(const std::string& text);
  // With the texts in place of their names.
  std::string expand(std::string_view line) const;

 private:
  struct Paste {
    std::string name, text;
  };
  std::vector<Paste> pastes_;
};

// A pasted text with \n for every end of a line. It comes from a terminal in the editor's mode: a return is
// \n, a line feed \r. Control characters and ends of lines at the end of the text are dropped.
std::string clean_paste(std::string_view typed);

}  // namespace moesaic::chat
