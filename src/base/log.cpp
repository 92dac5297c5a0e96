#include "base/log.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>
#include <utility>

namespace moesaic {
namespace {

std::atomic<bool> debug_on = false, notices_on = false, has_callback = false;

struct Callback {
  std::mutex mutex;
  std::shared_ptr<const LogCallback> call;
};
Callback& callback() {
  static Callback& one = *new Callback;  // for threads that outlive main()
  return one;
}

struct NoticeSink {
  std::mutex mutex;
  std::function<void(const std::string&)> take;
};
NoticeSink& notice_sink() {
  static NoticeSink& one = *new NoticeSink;  // as above
  return one;
}

thread_local bool in_callback = false;  // this thread holds the mutex

}  // namespace

void set_log_callback(LogCallback call) {
  const bool some = static_cast<bool>(call);
  auto next = some ? std::make_shared<const LogCallback>(std::move(call)) : nullptr;
  const auto lock = in_callback ? std::unique_lock<std::mutex>() : std::unique_lock(callback().mutex);
  has_callback = some;
  callback().call.swap(next);
}

// A line that the callback itself gives rise to is dropped: there would be no end of them.
void log(LogLevel level, const std::string& line) {
  if (!has_callback || in_callback) return;
  const std::lock_guard lock(callback().mutex);
  const auto call = callback().call;  // which may set another one
  if (call == nullptr) return;
  struct Inside {
    Inside() { in_callback = true; }
    ~Inside() { in_callback = false; }
  };
  const Inside inside;
  try {
    (*call)(level, line);
  } catch (...) {  // an exception of the callback must not end a thread that had something to say
  }
}

void set_debug(bool on) { debug_on = on; }
bool debug_enabled() { return debug_on || has_callback; }
void debug(const std::string& line) {
  if (has_callback) return log(LogLevel::kDebug, line);
  if (debug_on) std::fprintf(stderr, "moesaic: %s\n", line.c_str());
}

void set_notices(bool on) { notices_on = on; }
void set_notice_sink(std::function<void(const std::string&)> take) {
  const std::lock_guard lock(notice_sink().mutex);
  notice_sink().take = std::move(take);
}
// Names of files may hold anything.
void notice(std::string line) {
  std::ranges::replace_if(
      line, [](unsigned char c) { return c < 0x20 || c == 0x7F; }, '?');
  if (has_callback) return log(LogLevel::kWarning, line);
  const std::lock_guard lock(notice_sink().mutex);
  if (notice_sink().take) return notice_sink().take(line);
  if (notices_on) std::fprintf(stderr, "moesaic: %s\n", line.c_str());
}

}  // namespace moesaic
