#include "base/log.h"

#include <atomic>
#include <cstdio>

namespace moesaic {
namespace {

std::atomic<LogLevel> level_now{LogLevel::kQuiet};

}  // namespace

void set_log_level(LogLevel level) { level_now = level; }
bool debug_enabled() { return level_now.load(std::memory_order_relaxed) == LogLevel::kDebug; }
void debug(const std::string& line) {
  if (debug_enabled()) std::fprintf(stderr, "moesaic: %s\n", line.c_str());
}

}  // namespace moesaic
