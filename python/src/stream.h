// The results of requests since somebody last looked. The engine's thread fills it and never takes Python's
// lock, so that tokens are made while Python is busy or waits.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <vector>

#include "moesaic/engine.h"

namespace moesaic::python {

// New results of one request, in the order in which they came.
struct Delta {
  int index = 0;  // as in Stream::add
  std::vector<SampledToken>
      prompt_tokens;                 // with their log-probabilities, where prompt_logprobs asks for them
  std::vector<SampledToken> tokens;  // the token that ends the text included
  std::vector<TextPiece> pieces;
  std::optional<Outcome> end;  // the last delta has it
  // When its work began, and its first and its latest token came; at the clock's epoch: not yet.
  std::chrono::steady_clock::time_point begun = {}, first_token = {}, latest_token = {};
};

// Thread-safe.
class Stream {
 public:
  // only_ends: requests are reported once, when they have ended.
  explicit Stream(bool only_ends);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Callbacks and stop token of a new request. The callbacks keep `self` alive. index: none of a request that
  // has not been taken with its end yet.
  static Callbacks add(const std::shared_ptr<Stream>& self, int index);
  std::stop_token stop_token(int index) const;
  // A request that never began.
  void forget(int index);

  // Requests whose end has not been taken.
  int open() const;
  // Blocks until take() has something to give, at most so long. False: it has nothing.
  bool wait(std::chrono::milliseconds most);
  std::vector<Delta> take();
  // An eventfd, readable while take() has something to give. The first call makes it.
  Result<int> fd();

  // They end before the next step, with FinishReason::kCancelled.
  void cancel(int index);
  void cancel_all();
  // Every request that has not ended ends with this error: the engine is gone.
  void fail(const Status& status);

 private:
  struct Live {
    Delta delta;
    std::stop_source stop;
    bool ready = false;  // in ready_
  };

  void change(int index, bool ends, const auto& change);
  void make_ready(int index, Live& live);

  const bool only_ends_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, Live> live_;
  std::vector<int> ready_;
  int fd_ = -1;  // nobody has asked for one
};

}  // namespace moesaic::python
