// Lines beside the results: to the callback of moesaic/log.h, else, where asked for, to standard error.
#pragma once

#include <functional>
#include <string>

#include "moesaic/log.h"

namespace moesaic {

// Debug lines go to standard error while there is no callback. Set once, at start-up.
void set_debug(bool on);
// True if debug() prints: ask before a line that costs something to make.
bool debug_enabled();
void debug(const std::string& line);
// notice() tells the user of something that does not work, although the program goes on. The callback gets a
// warning. Without a callback, it prints a line to standard error if set_notices(true) was called (by the
// program, once at start-up).
void set_notices(bool on);
void notice(std::string line);
// Gives the lines of notice() to `take` instead of standard error, where a thread may have to wait for the
// reader. null: they are printed again.
void set_notice_sink(std::function<void(const std::string& line)> take);
// To the callback, if there is one.
void log(LogLevel level, const std::string& line);

}  // namespace moesaic
