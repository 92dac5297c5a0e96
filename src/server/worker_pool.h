// Threads for the work that a request needs before it can generate: reading its JSON, compiling its schemas,
// making its tokens. They are neither the threads that serve sockets nor the engine's.
#pragma once

#include <array>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "base/fair_queue.h"

namespace moesaic::server {

namespace asio = boost::asio;

// By what a task may cost. Each lane has its own queue and threads: costly tasks never take the threads of
// cheap ones. The costlier the lane, the lower the priority of its threads (nice), so that the engine keeps
// the cores.
enum class Lane {
  kQuick,   // a small body: milliseconds
  kMedium,  // a body of up to a megabyte, or schemas that have to be compiled: tenths of a second
  kLarge    // the others: seconds
};
inline constexpr int kLanes = 3;

class WorkerPool {
 public:
  struct QueueKey {
    Lane lane = Lane::kQuick;
    std::string client;  // clients of a lane take turns
  };
  enum class End {
    kDone,
    kBusy,       // the lane's queue is full, or the pool has stopped
    kCancelled,  // or past the deadline: the work did not begin, or its result is not wanted any more
  };
  using Clock = std::chrono::steady_clock;

  // most_waiting: tasks in the queue of each lane. Throws std::system_error where the system gives no thread.
  explicit WorkerPool(size_t most_waiting);
  ~WorkerPool();  // as stop(), but what waits gets no result
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Runs `work` on a thread of the lane; the coroutine goes on when it has ended, or when `cancel` is
  // triggered, or at the deadline, whichever is first. After kCancelled the work may still be running, so it
  // must own what it uses. Rethrows what the work throws. executor: the coroutine's own, a strand.
  asio::awaitable<End> run(asio::any_io_executor executor, QueueKey key, std::stop_token cancel,
                           Clock::time_point deadline, std::function<void()> work);

  // Joins after the tasks in flight; those that wait end as kBusy.
  void stop();

  // Tasks that wait or run.
  int tasks(Lane lane) const;

 private:
  struct Task;
  using TaskPtr = std::shared_ptr<Task>;
  struct Queue {
    explicit Queue(size_t most) : waiting(most) {}
    FairQueue<TaskPtr> waiting;
    std::condition_variable wake;
    int running = 0;
  };

  void join();
  bool submit(const QueueKey& key, const TaskPtr& task);
  bool take_back(const QueueKey& key, const TaskPtr& task);
  void serve(Lane lane);
  TaskPtr next(Queue& queue, void (*on_idle)());

  mutable std::mutex mutex_;
  std::array<Queue, kLanes> queues_;
  bool stopping_ = false;
  uint64_t last_id_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace moesaic::server
