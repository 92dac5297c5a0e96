#include "base/log.h"

#include <atomic>
#include <cstdio>
#include <mutex>
#include <utility>

namespace moesaic {
namespace {

std::atomic<bool> debug_on = false, has_callback = false;

struct Callback {
  std::mutex mutex;
  LogCallback call;
};
Callback& callback() {
  static Callback& one = *new Callback;  // for threads that outlive main()
  return one;
}

}  // namespace

void set_log_callback(LogCallback call) {
  const std::lock_guard lock(callback().mutex);
  has_callback = static_cast<bool>(call);
  callback().call = std::move(call);
}

void log(LogLevel level, const std::string& line) {
  if (!has_callback) return;
  const std::lock_guard lock(callback().mutex);
  if (callback().call) callback().call(level, line);
}

void set_debug(bool on) { debug_on = on; }
bool debug_enabled() { return debug_on || has_callback; }
void debug(const std::string& line) {
  if (has_callback) return log(LogLevel::kDebug, line);
  if (debug_on) std::fprintf(stderr, "moesaic: %s\n", line.c_str());
}

}  // namespace moesaic
