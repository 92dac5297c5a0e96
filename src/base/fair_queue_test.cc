#include "base/fair_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace moesaic {
namespace {

using Queue = FairQueue<std::string>;

std::vector<std::string> all_of(Queue& queue) {
  std::vector<std::string> tasks;
  while (auto task = queue.pop()) tasks.push_back(*task);
  return tasks;
}

TEST(FairQueue, ClientsTakeTurns) {
  Queue queue(100);
  uint64_t id = 0;
  for (const char* task : {"a1", "a2", "a3", "b1", "c1", "b2"})
    EXPECT_FALSE(queue.push(std::string(1, task[0]), ++id, task));
  EXPECT_EQ(all_of(queue), (std::vector<std::string>{"a1", "b1", "c1", "a2", "b2", "a3"}));
  EXPECT_EQ(queue.size(), 0);
}

TEST(FairQueue, AFullQueueSendsAwayWhoHasMost) {
  Queue queue(4);
  uint64_t id = 0;
  for (const char* task : {"a1", "a2", "a3", "b1"})
    EXPECT_FALSE(queue.push(std::string(1, task[0]), ++id, task));
  EXPECT_EQ(queue.push("c", ++id, "c1"), "a3");
  EXPECT_EQ(queue.push("a", ++id, "a4"), "a4");
  EXPECT_EQ(queue.push("b", ++id, "b2"), "b2");  // as many as a, and newer
  EXPECT_EQ(all_of(queue), (std::vector<std::string>{"a1", "b1", "c1", "a2"}));
}

TEST(FairQueue, OneClientAloneIsFirstInFirstOut) {
  Queue queue(2);
  EXPECT_FALSE(queue.push("a", 1, "a1"));
  EXPECT_FALSE(queue.push("a", 2, "a2"));
  EXPECT_EQ(queue.push("a", 3, "a3"), "a3");
  EXPECT_EQ(all_of(queue), (std::vector<std::string>{"a1", "a2"}));
}

TEST(FairQueue, ErasesWhatStillWaits) {
  Queue queue(10);
  for (uint64_t id = 1; id <= 3; ++id) queue.push("a", id, "a" + std::to_string(id));
  EXPECT_EQ(queue.erase("a", 2), "a2");
  EXPECT_FALSE(queue.erase("a", 2));
  EXPECT_FALSE(queue.erase("b", 1));
  EXPECT_EQ(queue.pop(), "a1");
  EXPECT_FALSE(queue.erase("a", 1));
  EXPECT_EQ(queue.erase("a", 3), "a3");
  EXPECT_FALSE(queue.pop());
}

TEST(FairQueue, WhoHasLeastAtWorkIsNext) {
  Queue queue(100);
  uint64_t id = 0;
  for (const char* task : {"a1", "a2", "b1", "c1"}) queue.push(std::string(1, task[0]), ++id, task);
  std::map<char, int> at_work = {{'a', 2}, {'b', 1}, {'c', 1}};
  const auto load = [&](const std::string& task) { return at_work[task[0]]; };
  std::vector<std::string> order;
  while (queue.size() > 0) {
    const std::string next = *queue.next(load);
    EXPECT_EQ(queue.pop(load), next);
    ++at_work[next[0]];
    order.push_back(next);
  }
  EXPECT_EQ(order, (std::vector<std::string>{"b1", "c1", "a1", "a2"}));
  EXPECT_EQ(queue.next(load), nullptr);
}

TEST(FairQueue, WhatComesBackIsItsClientsFirst) {
  Queue queue(2);
  queue.push("a", 1, "a1");
  queue.push("b", 2, "b1");
  queue.push_front("a", 0, "a0");
  queue.push_front("c", 3, "c0");
  EXPECT_EQ(queue.size(), 4);
  queue.erase_if([](const std::string& task) { return task == "a1" || task == "b1"; });
  std::string left;
  queue.for_each([&](const std::string& task) { left += task; });
  EXPECT_EQ(left, "a0c0");
  EXPECT_FALSE(queue.erase("b", 2));
  EXPECT_EQ(all_of(queue), (std::vector<std::string>{"a0", "c0"}));
}

TEST(FairQueue, AnExceptionAmongThoseThatGoLosesAndRepeatsNone) {
  Queue queue(10);
  for (const std::string task : {"a1", "b1", "b2", "b3", "b4", "c1"})
    queue.push(task.substr(0, 1), static_cast<uint64_t>(task[1]), task);
  const auto until = [](const std::string& task) {
    if (task == "b4") throw std::runtime_error("no memory");
    return task != "b2";
  };
  EXPECT_THROW(queue.erase_if(until), std::runtime_error);
  EXPECT_EQ(queue.size(), 3);
  EXPECT_EQ(all_of(queue), (std::vector<std::string>{"b2", "c1", "b4"}));
}

// Whatever comes in whatever order: between two tasks of a client every other client that waited had its
// turn, each client's tasks stay in order, and none is lost.
TEST(FairQueue, RandomTrafficIsFair) {
  std::mt19937 random(7);
  Queue queue(40);
  std::map<std::string, std::vector<uint64_t>> waiting;  // by client
  std::map<std::string, int> passed_over;
  for (uint64_t id = 1; id <= 20000; ++id) {
    const std::string client(1, static_cast<char>('a' + random() % 6));
    switch (random() % 3) {
      case 0: {
        waiting[client].push_back(id);
        if (auto refused = queue.push(client, id, client + std::to_string(id))) {
          auto& tasks = waiting[refused->substr(0, 1)];
          ASSERT_EQ(*refused, refused->substr(0, 1) + std::to_string(tasks.back()));
          for (const auto& [other, others] : waiting) ASSERT_LE(others.size(), tasks.size()) << other;
          tasks.pop_back();
        }
        break;
      }
      case 1: {
        const auto task = queue.pop();
        if (!task) break;
        auto& tasks = waiting[task->substr(0, 1)];
        ASSERT_EQ(*task, task->substr(0, 1) + std::to_string(tasks.front()));
        tasks.erase(tasks.begin());
        for (auto& [other, others] : waiting)
          passed_over[other] = others.empty() || other == task->substr(0, 1) ? 0 : passed_over[other] + 1;
        for (const auto& [other, times] : passed_over) ASSERT_LT(times, 6) << other;
        break;
      }
      default: {
        auto& tasks = waiting[client];
        if (tasks.empty()) break;
        const size_t at = random() % tasks.size();
        ASSERT_EQ(queue.erase(client, tasks[at]), client + std::to_string(tasks[at]));
        tasks.erase(tasks.begin() + static_cast<std::ptrdiff_t>(at));
        if (tasks.empty()) passed_over[client] = 0;
      }
    }
    size_t total = 0;
    for (const auto& [other, others] : waiting) total += others.size();
    ASSERT_EQ(queue.size(), total);
  }
}

}  // namespace
}  // namespace moesaic
