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
template <typename Task>
class FairQueue {
 public:
  explicit FairQueue(size_t most) : most_(most) {}

  size_t size() const { return size_; }

  // Adds a task; `id` names it to erase(). Where the queue is full, returns the task that has to go: the
  // newest one of the client with the most tasks, which may be this one.
  std::optional<Task> push(const std::string& client, uint64_t id, Task task) {
    add(client, id, std::move(task));
    if (size_ <= most_) return std::nullopt;
    const auto longest =
        std::max_element(order_.begin(), order_.end(), [](const ClientTasks& a, const ClientTasks& b) {
          return a.tasks.size() < b.tasks.size() ||
                 (a.tasks.size() == b.tasks.size() && a.newest() < b.newest());
        });
    return take(longest, std::prev(longest->tasks.end()));
  }

  // The next task; that client's next one comes after one of every other client.
  std::optional<Task> pop() {
    if (order_.empty()) return std::nullopt;
    order_.splice(order_.end(), order_, order_.begin());
    const auto client_tasks = std::prev(order_.end());
    return take(client_tasks, client_tasks->tasks.begin());
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

 private:
  struct ClientTasks {
    std::string client;
    std::deque<std::pair<uint64_t, Task>> tasks;  // never empty between calls
    uint64_t newest() const { return tasks.back().first; }
  };
  using Clients = std::list<ClientTasks>;

  void add(const std::string& client, uint64_t id, Task task) {
    const auto [at, is_new] = by_name_.try_emplace(client);
    if (is_new) at->second = order_.insert(order_.end(), ClientTasks{client, {}});
    at->second->tasks.emplace_back(id, std::move(task));
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
