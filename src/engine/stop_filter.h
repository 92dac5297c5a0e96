// Holds text back while it may still become a stop string.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

class StopFilter {
 public:
  explicit StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Text that is safe to show. Once a stop string is complete everything from it on is dropped and stopped()
  // is true.
  std::string push(std::string_view text);
  // The end of the stream: what was held back is text after all.
  std::string flush();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace moesaic
