// Lines for whoever runs the program, on standard error. The level is set once, at start-up.
#pragma once

#include <string>

namespace moesaic {

enum class LogLevel { kQuiet, kDebug };

void set_log_level(LogLevel level);
// Whether debug() prints: ask before a line that costs something to make.
bool debug_enabled();
void debug(const std::string& line);

}  // namespace moesaic
