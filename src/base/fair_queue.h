// Tasks of many clients: each client's own first in, first out; the clients take turns.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <list>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

namespace moesaic {

// Bounded. Not thread-safe. A client with many tasks delays another client's task by one of its own at most.
// A function `load` of a client's first task may say how much the client has at work. The next task is then
// of the client with the least load, and clients with equal loads take turns.
template <typename Task>
class FairQueue {
 public:
  explicit FairQueue(size_t most) : most_(most) {}

  size_t size() const { return size_; }

  // Adds a task; `id` names it to erase(). Where the queue is full, returns the task that has to go: the
  // newest one of the client with the most tasks, which may be this one.
  std::optional<Task> push(const std::string& client, uint64_t id, Task task) {
    add(client, [&](auto& tasks) { tasks.emplace_back(id, std::move(task)); });
    if (size_ <= most_) return std::nullopt;
    const auto longest =
        std::max_element(order_.begin(), order_.end(), [](const ClientTasks& a, const ClientTasks& b) {
          return a.tasks.size() < b.tasks.size() ||
                 (a.tasks.size() == b.tasks.size() && a.newest() < b.newest());
        });
    return take(longest, std::prev(longest->tasks.end()));
  }

  // Adds a task that is the first of its client's, also to a full queue: it had left the queue before.
  void push_front(const std::string& client, uint64_t id, Task task) {
    add(client, [&](auto& tasks) { tasks.emplace_front(id, std::move(task)); });
  }

  // The next task; that client's next one comes after one of every other client.
  std::optional<Task> pop() {
    return pop([](const Task&) { return 0; });
  }
  template <typename Load>
  std::optional<Task> pop(const Load& load) {
    if (order_.empty()) return std::nullopt;
    order_.splice(order_.end(), order_, turn(order_, load));
    const auto client_tasks = std::prev(order_.end());
    return take(client_tasks, client_tasks->tasks.begin());
  }
  // The task that pop() would give; null: none.
  template <typename Load>
  const Task* next(const Load& load) const {
    return order_.empty() ? nullptr : &turn(order_, load)->tasks.front().second;
  }

  // The task that push() was given under this id, where it still waits.
  std::optional<Task> erase(const std::string& client, uint64_t id) {
    const auto at = by_name_.find(client);
    if (at == by_name_.end()) return std::nullopt;
    auto& tasks = at->second->tasks;
    const auto task = std::find_if(tasks.begin(), tasks.end(), [&](const auto& e) { return e.first == id; });
    if (task == tasks.end()) return std::nullopt;
    return take(at->second, task);
  }
  // The queue is whole whenever `gone` is called, which may throw.
  template <typename Gone>
  void erase_if(const Gone& gone) {
    for (auto of = order_.begin(); of != order_.end();) {
      for (auto task = of->tasks.begin(); task != of->tasks.end();) {
        const bool over = gone(task->second);
        size_ -= over ? 1 : 0;
        task = over ? of->tasks.erase(task) : task + 1;
      }
      const bool none = of->tasks.empty() && by_name_.erase(of->client) > 0;
      of = none ? order_.erase(of) : std::next(of);
    }
  }
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (const ClientTasks& of : order_) {
      for (const auto& task : of.tasks) visit(task.second);
    }
  }

 private:
  struct ClientTasks {
    std::string client;
    std::deque<std::pair<uint64_t, Task>> tasks;  // never empty between calls
    uint64_t newest() const { return tasks.back().first; }
  };
  using Clients = std::list<ClientTasks>;

  // The client with the least load; among equal ones, the one whose turn was longest ago.
  template <typename List, typename Load>
  static auto turn(List& clients, const Load& load) {
    return std::min_element(clients.begin(), clients.end(), [&](const ClientTasks& a, const ClientTasks& b) {
      return load(a.tasks.front().second) < load(b.tasks.front().second);
    });
  }
  // Without memory the queue stays as it is.
  template <typename Put>
  void add(const std::string& client, const Put& put) {
    const auto at = by_name_.find(client);
    if (at != by_name_.end()) {
      put(at->second->tasks);
    } else {
      Clients added;
      added.push_back({client, {}});
      put(added.back().tasks);
      by_name_.emplace(client, added.begin());
      order_.splice(order_.end(), added);
    }
    ++size_;
  }
  std::optional<Task> take(typename Clients::iterator client_tasks,
                           typename std::deque<std::pair<uint64_t, Task>>::iterator at) {
    std::optional<Task> task = std::move(at->second);
    client_tasks->tasks.erase(at);
    --size_;
    if (client_tasks->tasks.empty()) {
      by_name_.erase(client_tasks->client);
      order_.erase(client_tasks);
    }
    return task;
  }

  size_t most_, size_ = 0;
  Clients order_;  // the next one's first
  std::unordered_map<std::string, typename Clients::iterator> by_name_;
};

}  // namespace moesaic
