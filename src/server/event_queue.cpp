#include "server/event_queue.h"

#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <iterator>
#include <utility>

namespace moesaic::server {

void EventQueue::push(Events&& events) {
  const std::lock_guard lock(mutex_);
  events_.insert(events_.end(), std::make_move_iterator(events.begin()),
                 std::make_move_iterator(events.end()));
  // The timer belongs to the strand: only there may it be touched.
  if (std::exchange(waiting_, false))
    asio::post(executor_, [self = shared_from_this()] { self->timer_.cancel(); });
}

void EventQueue::cancel() { push({openai::AnswerEvent{.end = Outcome{.finish = FinishReason::kCancelled}}}); }

void EventQueue::drop() {
  dropped_ = true;
  cancel();
}

// True if an event is there; if not, push() will wake the timer.
bool EventQueue::pending() {
  const std::lock_guard lock(mutex_);
  waiting_ = events_.empty();
  return !events_.empty();
}

asio::awaitable<EventQueue::Events> EventQueue::take(Clock::time_point deadline) {
  timer_.expires_at(deadline);
  while (!pending() && Clock::now() < deadline) {
    boost::system::error_code woken;
    co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, woken));
  }
  const std::lock_guard lock(mutex_);
  waiting_ = false;
  co_return std::exchange(events_, {});
}

}  // namespace moesaic::server
