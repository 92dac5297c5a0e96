#include "server/worker_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_future.hpp>
#include <cstdlib>
#include <future>
#include <stdexcept>
#include <system_error>

namespace moesaic::server {
namespace {

using End = WorkerPool::End;
using Clock = WorkerPool::Clock;

constexpr Clock::time_point kLater(std::chrono::hours(24 * 365 * 10));  // after the machine started

// Coroutines that wait for the pool, on a thread of their own as the sockets' are.
class WorkerPoolTest : public testing::Test {
 protected:
  ~WorkerPoolTest() override {
    guard_.reset();
    thread_.join();
    pool_.stop();
  }

  std::future<End> run(const WorkerPool::QueueKey& key, std::function<void()> work,
                       std::stop_token cancel = {}, Clock::time_point deadline = kLater) {
    const asio::any_io_executor strand = asio::make_strand(io_);
    return asio::co_spawn(strand, pool_.run(strand, key, std::move(cancel), deadline, std::move(work)),
                          asio::use_future);
  }
  // Keeps a lane's only thread busy until it is let go.
  std::future<End> block(Lane lane) {
    std::promise<void> begun;
    auto first = begun.get_future();
    auto future = run({lane, "x"}, [&] {
      begun.set_value();
      free_.get_future().wait();
    });
    first.wait();
    return future;
  }
  void until_tasks(Lane lane, int count) {
    while (pool_.tasks(lane) != count) std::this_thread::yield();
  }

  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> guard_{io_.get_executor()};
  WorkerPool pool_{4};
  std::thread thread_{[this] { io_.run(); }};
  std::promise<void> free_;
};

TEST_F(WorkerPoolTest, RunsOnOtherThreads) {
  std::thread::id id;
  EXPECT_EQ(run({}, [&] { id = std::this_thread::get_id(); }).get(), End::kDone);
  EXPECT_NE(id, std::thread::id());
  EXPECT_NE(id, thread_.get_id());
}

TEST_F(WorkerPoolTest, ALargeJobDoesNotDelayQuickOnes) {
  auto large = block(Lane::kLarge);
  auto waiting = run({Lane::kLarge, "y"}, [] {});
  for (int i = 0; i < 100; ++i) EXPECT_EQ(run({Lane::kQuick, "a"}, [] {}).get(), End::kDone);
  EXPECT_EQ(run({Lane::kMedium, "a"}, [] {}).get(), End::kDone);
  until_tasks(Lane::kLarge, 2);
  free_.set_value();
  EXPECT_EQ(large.get(), End::kDone);
  EXPECT_EQ(waiting.get(), End::kDone);
}

TEST_F(WorkerPoolTest, ClientsOfALaneTakeTurns) {
  auto blocked = block(Lane::kLarge);
  std::string order;
  std::vector<std::future<End>> futures;
  for (const char client : {'a', 'a', 'a', 'b'}) {
    futures.push_back(run({Lane::kLarge, std::string(1, client)}, [&order, client] { order += client; }));
    until_tasks(Lane::kLarge, static_cast<int>(futures.size()) + 1);
  }
  free_.set_value();
  for (auto& future : futures) EXPECT_EQ(future.get(), End::kDone);
  EXPECT_EQ(order, "abaa");
}

TEST_F(WorkerPoolTest, RefusesBeyondItsRoom) {
  auto blocked = block(Lane::kLarge);
  std::vector<std::future<End>> futures;
  for (int i = 0; i < 4; ++i) futures.push_back(run({Lane::kLarge, "a"}, [] {}));
  until_tasks(Lane::kLarge, 5);
  EXPECT_EQ(run({Lane::kLarge, "a"}, [] {}).get(), End::kBusy);
  auto other = run({Lane::kLarge, "b"}, [] {});  // takes the place of the newest of the four
  EXPECT_EQ(futures.back().get(), End::kBusy);
  futures.pop_back();
  free_.set_value();
  EXPECT_EQ(other.get(), End::kDone);
  for (auto& future : futures) EXPECT_EQ(future.get(), End::kDone);
}

TEST_F(WorkerPoolTest, WorkOfClientsThatLeftIsNotDone) {
  auto blocked = block(Lane::kLarge);
  std::stop_source gone;
  std::atomic<bool> ran = false;
  const auto data = std::make_shared<int>(1);
  auto left = run(
      {Lane::kLarge, "a"}, [&ran, data] { ran = true; }, gone.get_token());
  until_tasks(Lane::kLarge, 2);
  gone.request_stop();
  EXPECT_EQ(left.get(), End::kCancelled);
  EXPECT_EQ(pool_.tasks(Lane::kLarge), 1);  // its place is free again
  free_.set_value();
  EXPECT_EQ(blocked.get(), End::kDone);
  EXPECT_EQ(run({Lane::kLarge, "a"}, [] {}).get(), End::kDone);
  EXPECT_FALSE(ran);
  EXPECT_EQ(data.use_count(), 1);  // and what it held
}

TEST_F(WorkerPoolTest, NobodyWaitsForWorkThatIsOfNoUse) {
  std::stop_source gone;
  std::promise<void> begun, done;
  auto left = run(
      {},
      [&] {
        begun.set_value();
        free_.get_future().wait();
        done.set_value();
      },
      gone.get_token());
  begun.get_future().wait();
  gone.request_stop();
  EXPECT_EQ(left.get(), End::kCancelled);
  free_.set_value();
  done.get_future().wait();
}

// No time is measured: the lane is blocked, so however late the timer fires, the deadline ends the wait.
TEST_F(WorkerPoolTest, ADeadlineEndsTheWait) {
  auto blocked = block(Lane::kLarge);
  EXPECT_EQ(run(
                {Lane::kLarge, "a"}, [] {}, {}, Clock::now() + std::chrono::milliseconds(1))
                .get(),
            End::kCancelled);
  free_.set_value();
}

TEST_F(WorkerPoolTest, CancelledBeforeItBegins) {
  std::stop_source gone;
  gone.request_stop();
  auto blocked = block(Lane::kLarge);
  EXPECT_EQ(run(
                {Lane::kLarge, "a"}, [] {}, gone.get_token())
                .get(),
            End::kCancelled);
  free_.set_value();
}

TEST_F(WorkerPoolTest, WhatTheWorkThrowsIsTheCallers) {
  auto failed = run({}, [] { throw std::runtime_error("no"); });
  EXPECT_THROW(failed.get(), std::runtime_error);
  EXPECT_EQ(run({}, [] {}).get(), End::kDone);
}

TEST_F(WorkerPoolTest, StoppingEndsWhatWaits) {
  auto blocked = block(Lane::kLarge);
  auto waiting = run({Lane::kLarge, "a"}, [] {});
  until_tasks(Lane::kLarge, 2);
  std::thread stopping([&] { pool_.stop(); });
  EXPECT_EQ(waiting.get(), End::kBusy);
  free_.set_value();
  stopping.join();
  EXPECT_EQ(run({}, [] {}).get(), End::kBusy);
}

// A user with few processes: some of the threads can be started, or none.
TEST(WorkerPoolLimit, ThreadsThatCannotBeStartedAreAnError) {
  const auto make = [] {
    const rlimit few{.rlim_cur = 3, .rlim_max = 3};
    // Root has no such limit. Where it may not become another user, there is nothing to try.
    if ((getuid() == 0 && setuid(54321) != 0) || setrlimit(RLIMIT_NPROC, &few) != 0) std::_Exit(0);
    try {
      const WorkerPool pool(4);
    } catch (const std::system_error&) {
      std::_Exit(0);
    }
    std::_Exit(1);
  };
  EXPECT_EXIT(make(), testing::ExitedWithCode(0), "");
}

// Many of everything at a time: every coroutine goes on exactly once.
TEST_F(WorkerPoolTest, ManyAtATime) {
  std::vector<std::stop_source> gone(400);
  std::vector<std::future<End>> futures;
  std::atomic<int> ran = 0;
  for (size_t i = 0; i < gone.size(); ++i) {
    const WorkerPool::QueueKey key{static_cast<Lane>(i % kLanes), std::to_string(i % 7)};
    futures.push_back(run(
        key, [&ran] { ++ran; }, gone[i].get_token()));
    if (i % 3 == 0) gone[i].request_stop();
  }
  int done = 0;
  for (auto& future : futures) done += future.get() == End::kDone ? 1 : 0;
  for (const Lane lane : {Lane::kQuick, Lane::kMedium, Lane::kLarge}) until_tasks(lane, 0);
  EXPECT_GE(ran, done);
  EXPECT_GT(done, 0);
}

}  // namespace
}  // namespace moesaic::server
