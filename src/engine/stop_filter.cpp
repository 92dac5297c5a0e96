#include "engine/stop_filter.h"

#include <algorithm>
#include <utility>

namespace moesaic {

std::string StopFilter::push(std::string_view text) {
  if (stopped_) return {};
  held_ += text;
  size_t safe = held_.size(), found = std::string::npos, end = found;
  for (const std::string& stop : stops_) {
    if (const size_t at = held_.find(stop); at < found) {
      found = at;
      end = include_ ? at + stop.size() : at;
      found_ = stop;
    }
    // The longest end of the text that begins a stop string must wait.
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > 0; --n) {
      if (held_.ends_with(std::string_view(stop).substr(0, n))) {
        safe = std::min(safe, held_.size() - n);
        break;
      }
    }
  }
  if (found != std::string::npos) {
    stopped_ = true;
    return std::exchange(held_, {}).substr(0, end);
  }
  std::string out = held_.substr(0, safe);
  held_.erase(0, safe);
  return out;
}

std::string StopFilter::flush() { return stopped_ ? std::string() : std::exchange(held_, {}); }

}  // namespace moesaic
