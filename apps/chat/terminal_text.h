// Text for a terminal.
#pragma once

#include <string>
#include <string_view>

namespace moesaic::chat {

// The text without what a terminal would obey: a control character becomes its picture (ESC: U+241B), what is
// no UTF-8 and C1 controls become U+FFFD, carriage returns go. Newlines and tabs stay.
std::string printable(std::string_view text);
// The same in one line, as a name has it: newlines and tabs become spaces.
std::string printable_line(std::string_view text);

// Columns that a printable text without newlines takes.
int display_width(std::string_view text);

// The characters that fit whole into the first `columns` columns.
std::string_view first_columns(std::string_view text, int columns);

// A UTF-8 locale for character widths and the line editor, where the environment names none.
void use_utf8();

}  // namespace moesaic::chat
