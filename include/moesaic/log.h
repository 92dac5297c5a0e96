// Messages of the library beside its results. They may come from any thread.
#pragma once

#include <functional>
#include <string_view>

namespace moesaic {

enum class LogLevel { kError, kWarning, kInfo, kDebug };

// One line, without its end. Called from whatever thread has something to say, never from two at a time. It
// may call whatever it likes, also set another callback; what is said because of it is not passed on, and
// what it throws is dropped.
using LogCallback = std::function<void(LogLevel level, std::string_view message)>;

// Takes what is said from here on: how a device, context and batch were chosen (info), that no GPU is usable
// (warning), each kernel's first launch (debug). Nothing then goes to standard error. Empty: nothing is said.
// A message that another thread is just passing on is waited for, so that the old callback is not in use
// afterwards.
void set_log_callback(LogCallback callback);

}  // namespace moesaic
