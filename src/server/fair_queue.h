// Jobs of many clients: each client's own first in, first out; the clients take turns.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <list>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

namespace moesaic::server {

// Bounded. Not thread-safe. A client with many jobs delays another client's job by one of its own at most.
template <typename Job>
class FairQueue {
 public:
  explicit FairQueue(size_t most) : most_(most) {}

  size_t size() const { return size_; }

  // Adds a job; `id` names it to erase(). Where the queue is full, returns the job that has to go: the newest
  // one of the client with the most jobs, which may be this one.
  std::optional<Job> push(const std::string& client, uint64_t id, Job job) {
    add(client, id, std::move(job));
    if (size_ <= most_) return std::nullopt;
    const auto longest =
        std::max_element(order_.begin(), order_.end(), [](const ClientJobs& a, const ClientJobs& b) {
          return a.jobs.size() < b.jobs.size() || (a.jobs.size() == b.jobs.size() && a.newest() < b.newest());
        });
    return take(longest, std::prev(longest->jobs.end()));
  }

  // The next job; that client's next one comes after one of every other client.
  std::optional<Job> pop() {
    if (order_.empty()) return std::nullopt;
    order_.splice(order_.end(), order_, order_.begin());
    const auto client_jobs = std::prev(order_.end());
    return take(client_jobs, client_jobs->jobs.begin());
  }

  // The job that push() was given under this id, where it still waits.
  std::optional<Job> erase(const std::string& client, uint64_t id) {
    const auto at = by_name_.find(client);
    if (at == by_name_.end()) return std::nullopt;
    auto& jobs = at->second->jobs;
    const auto job = std::find_if(jobs.begin(), jobs.end(), [&](const auto& e) { return e.first == id; });
    if (job == jobs.end()) return std::nullopt;
    return take(at->second, job);
  }

 private:
  struct ClientJobs {
    std::string client;
    std::deque<std::pair<uint64_t, Job>> jobs;  // never empty between calls
    uint64_t newest() const { return jobs.back().first; }
  };
  using Clients = std::list<ClientJobs>;

  void add(const std::string& client, uint64_t id, Job job) {
    const auto [at, is_new] = by_name_.try_emplace(client);
    if (is_new) at->second = order_.insert(order_.end(), ClientJobs{client, {}});
    at->second->jobs.emplace_back(id, std::move(job));
    ++size_;
  }
  std::optional<Job> take(typename Clients::iterator client_jobs,
                          typename std::deque<std::pair<uint64_t, Job>>::iterator at) {
    std::optional<Job> job = std::move(at->second);
    client_jobs->jobs.erase(at);
    --size_;
    if (client_jobs->jobs.empty()) {
      by_name_.erase(client_jobs->client);
      order_.erase(client_jobs);
    }
    return job;
  }

  size_t most_, size_ = 0;
  Clients order_;  // the next one's first
  std::unordered_map<std::string, typename Clients::iterator> by_name_;
};

}  // namespace moesaic::server
