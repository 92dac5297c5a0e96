// The events that the engine's thread hands to one request's coroutine.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

#include "openai/answer.h"

namespace moesaic::server {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

// push() from any thread; take() from one coroutine on the executor, which must be a strand. The queue has no
// bound of its own: a generation ends with its context. What is taken from it counts for the client until it
// is read, and a client that reads too slowly is cut off.
class EventQueue : public std::enable_shared_from_this<EventQueue> {
 public:
  using Events = std::vector<openai::AnswerEvent>;

  // progress: its client wants to know how much of the prompts is read.
  EventQueue(const asio::any_io_executor& executor, bool progress)
      : executor_(executor), timer_(executor), progress_(progress) {}

  bool wants_progress() const { return progress_; }

  void push(Events&& events);
  // Adds the end that a generation has which the engine cancels.
  void cancel();
  // The same, because the engine has no room for it after all.
  void drop();
  bool dropped() const { return dropped_; }
  // Takes the events that are there. Waits for one until the deadline; then it gives none.
  asio::awaitable<Events> take(Clock::time_point deadline);

 private:
  bool pending();

  asio::any_io_executor executor_;
  asio::steady_timer timer_;
  const bool progress_;
  std::mutex mutex_;
  Events events_;
  bool waiting_ = false;
  std::atomic<bool> dropped_ = false;
};

}  // namespace moesaic::server
