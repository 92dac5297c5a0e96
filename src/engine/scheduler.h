// Decides what the next step computes: first one token of every sequence that decodes, then, with what is
// left of the row budget, chunks of the prompts that wait, first come first served. Decoding never waits
// behind a long prompt.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "engine/request.h"

namespace moesaic {

struct ScheduledBatch {
  Batch batch;
  std::vector<Request*> wanted;                    // whose token each logit row gives
  std::vector<std::pair<Request*, int>> advances;  // tokens that each request gets computed
};

class Scheduler {
 public:
  // max_rows: rows of a step. max_batch: requests at a time; the pools must hold a whole context for each, so
  // that no admitted request ever lacks a page. The others wait.
  Scheduler(const KvLayout& layout, int window, int max_rows, int max_batch)
      : pages_(layout, window), max_rows_(max_rows), max_batch_(max_batch) {}

  void submit(std::shared_ptr<Request> request) { requests_.push_back(std::move(request)); }
  bool idle() const { return requests_.empty(); }
  // Empty if there is no request.
  ScheduledBatch next_batch();
  // Ends every request with the device's error.
  void fail_all(const Status& status);
  // Drops finished requests and gives their pages back.
  void collect();
  const KvPages& pages() const { return pages_; }

 private:
  void schedule(Request& request, int rows, ScheduledBatch& out);

  KvPages pages_;
  int max_rows_, max_batch_;
  std::deque<std::shared_ptr<Request>> requests_;  // in order of submission
};

}  // namespace moesaic
