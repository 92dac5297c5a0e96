// The events of a streamed completion, as a server sends them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace moesaic::app {

struct LoadEvent {
  std::string text;               // the first choice's
  std::string error;              // the server's, or why this is no event of a completion; empty: none
  bool last = false;              // the answer is complete
  std::optional<uint64_t> usage;  // completion_tokens; 0: there is a usage, but no such number in it
};

// data: what stands behind "data:".
LoadEvent read_load_event(std::string_view data);

// Puts an event's data together from bytes that come in any portions.
class LoadEventLines {
 public:
  // At most kMostLine bytes without an end of a line; else it refuses what follows.
  static constexpr size_t kMostLine = 4 << 20;
  bool add(std::string_view bytes);
  // The next event's data. False: none is whole.
  bool next(std::string& data);

 private:
  std::string lines_;
  size_t at_ = 0;  // bytes of lines_ that were taken
};

}  // namespace moesaic::app
