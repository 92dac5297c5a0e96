// Cancellation is std::stop_token everywhere: whoever may cancel keeps a std::stop_source, whoever can be
// cancelled takes its token. This joins two of them.
#pragma once

#include <stop_token>
#include <utility>

namespace moesaic {

// A stop source that is also triggered by either of two tokens. Thread-safe as std::stop_source is.
class LinkedStop {
 public:
  explicit LinkedStop(std::stop_token a, std::stop_token b = {})
      : on_a_(std::move(a), Trigger{&source_}), on_b_(std::move(b), Trigger{&source_}) {}

  std::stop_token token() const { return source_.get_token(); }
  void request_stop() { source_.request_stop(); }

 private:
  struct Trigger {
    std::stop_source* source;
    void operator()() const { source->request_stop(); }
  };
  std::stop_source source_;
  std::stop_callback<Trigger> on_a_, on_b_;
};

}  // namespace moesaic
