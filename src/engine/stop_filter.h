// Holds text back while it may still become a stop string.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

class StopFilter {
 public:
  // include: a stop string that ends the text is part of it.
  explicit StopFilter(std::vector<std::string> stops, bool include = false)
      : stops_(std::move(stops)), include_(include) {}

  // Text that is safe to show. Once a stop string is complete everything from it on, or from behind it, is
  // dropped and stopped() is true.
  std::string push(std::string_view text);
  // The end of the stream: what was held back is text after all.
  std::string flush();
  bool stopped() const { return stopped_; }
  // The stop string that did it; empty while there is none.
  const std::string& found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  bool include_;
  std::string held_, found_;
  bool stopped_ = false;
};

}  // namespace moesaic
