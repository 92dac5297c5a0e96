#include "server/worker_pool.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <optional>
#include <utility>

#include "base/thread_priority.h"

namespace moesaic::server {
namespace {

struct LaneThreads {
  int count, nice;
};

// Two where one request's odd costs must not hold up the others.
constexpr std::array<LaneThreads, kLanes> kThreads = {LaneThreads{2, 2}, LaneThreads{2, 10},
                                                      LaneThreads{1, 15}};

// Memory that large tasks have freed goes back to the system: not at once, since their answers are still to
// be sent.
constexpr auto kIdleTime = std::chrono::milliseconds(300);

void return_free_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace

// The timer is touched on the executor only; the rest under the mutex until the work begins.
struct WorkerPool::Task : std::enable_shared_from_this<Task> {
  Task(const asio::any_io_executor& e, std::function<void()> w) : executor(e), timer(e), work(std::move(w)) {}

  void end(End with) {
    asio::post(executor, [self = shared_from_this(), with] {
      if (!self->result) self->result = with;
      self->timer.cancel();
    });
  }
  void run() {
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
    work = nullptr;  // frees its objects here, not on a socket's thread
    end(End::kDone);
  }

  asio::any_io_executor executor;
  asio::steady_timer timer;
  std::function<void()> work;
  uint64_t id = 0;
  std::exception_ptr failure;
  std::optional<End> result;  // on the executor only
};

WorkerPool::WorkerPool(size_t most_waiting)
    : queues_{Queue(most_waiting), Queue(most_waiting), Queue(most_waiting)} {
  try {
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int i = 0; i < kThreads[lane].count; ++i)
        threads_.emplace_back([this, lane] { serve(static_cast<Lane>(lane)); });
    }
  } catch (...) {
    join();
    throw;
  }
}

WorkerPool::~WorkerPool() { join(); }

void WorkerPool::join() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (Queue& queue : queues_) queue.wake.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void WorkerPool::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (Queue& queue : queues_) {
      while (const std::optional<TaskPtr> left = queue.waiting.pop()) (*left)->end(End::kBusy);
    }
  }
  join();
}

int WorkerPool::tasks(Lane lane) const {
  const std::lock_guard lock(mutex_);
  const Queue& queue = queues_[static_cast<int>(lane)];
  return static_cast<int>(queue.waiting.size()) + queue.running;
}

// False: no room. Another task may have to leave instead.
bool WorkerPool::submit(const QueueKey& key, const TaskPtr& task) {
  std::optional<TaskPtr> refused = task;
  {
    const std::lock_guard lock(mutex_);
    Queue& queue = queues_[static_cast<int>(key.lane)];
    task->id = ++last_id_;
    if (!stopping_) refused = queue.waiting.push(key.client, task->id, task);
    queue.wake.notify_one();
  }
  if (refused && *refused != task) (*refused)->end(End::kBusy);
  return !refused || *refused != task;
}

// False: it has begun.
bool WorkerPool::take_back(const QueueKey& key, const TaskPtr& task) {
  const std::lock_guard lock(mutex_);
  return queues_[static_cast<int>(key.lane)].waiting.erase(key.client, task->id).has_value();
}

asio::awaitable<WorkerPool::End> WorkerPool::run(asio::any_io_executor executor, QueueKey key,
                                                 std::stop_token cancel, Clock::time_point deadline,
                                                 std::function<void()> work) {
  const auto task = std::make_shared<Task>(executor, std::move(work));
  if (!submit(key, task)) co_return End::kBusy;
  {
    const std::stop_callback on_cancel(cancel, [&] { task->end(End::kCancelled); });
    task->timer.expires_at(deadline);
    while (!task->result && Clock::now() < deadline) {
      boost::system::error_code woken;
      co_await task->timer.async_wait(asio::redirect_error(asio::use_awaitable, woken));
    }
  }
  const End end = task->result.value_or(End::kCancelled);
  if (end == End::kDone && task->failure) std::rethrow_exception(task->failure);
  if (end == End::kCancelled && take_back(key, task)) task->work = nullptr;
  co_return end;
}

// Waits for one; null at the end. on_idle, where there is one, is called once nothing has come for a while.
WorkerPool::TaskPtr WorkerPool::next(Queue& queue, void (*on_idle)()) {
  const auto ready = [&] { return stopping_ || queue.waiting.size() > 0; };
  std::unique_lock lock(mutex_);
  if (on_idle != nullptr && !queue.wake.wait_for(lock, kIdleTime, ready)) {
    lock.unlock();
    on_idle();
    lock.lock();
  }
  queue.wake.wait(lock, ready);
  if (stopping_) return nullptr;
  ++queue.running;
  return *queue.waiting.pop();
}

void WorkerPool::serve(Lane lane) {
  lower_thread_priority(kThreads[static_cast<int>(lane)].nice);
  Queue& queue = queues_[static_cast<int>(lane)];
  while (const TaskPtr task = next(queue, lane == Lane::kLarge ? return_free_memory : nullptr)) {
    task->run();
    const std::lock_guard lock(mutex_);
    --queue.running;
  }
}

}  // namespace moesaic::server
