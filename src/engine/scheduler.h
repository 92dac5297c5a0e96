// Decides what the next step computes: first one token of every sequence that decodes, then, with what is
// left of the row budget, chunks of the prompts that wait, first come first served. Decoding never waits
// behind a long prompt.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "engine/request.h"
#include "moesaic/stats.h"

namespace moesaic {

struct ScheduledBatch {
  Batch batch;
  std::vector<std::shared_ptr<Request>> wanted;  // whose token each logit row gives
};

class Scheduler {
 public:
  // max_rows: rows of a step. max_batch: requests at a time; the pools must hold a whole context for each, so
  // that no admitted request ever lacks a page. The others wait. reuse, with max_batch 1 only: the pages of
  // the last request stay until the next one begins, which takes over what it has in common with it.
  Scheduler(const KvLayout& layout, int window, int max_rows, int max_batch, bool reuse = false)
      : pages_(layout, window), max_rows_(max_rows), max_batch_(max_batch), reuse_(reuse) {}

  void submit(std::shared_ptr<Request> request) { requests_.push_back(std::move(request)); }
  bool idle() const { return requests_.empty(); }
  // The next step, which counts as computed from here on: the caller runs it or fails all. Empty if there is
  // no request, or none but those that end with the token under way. draws: the backend may draw the tokens,
  // where every request of the step allows it.
  ScheduledBatch next_batch(bool draws);
  // Ends every request with the device's error.
  void fail_all(const Status& status);
  // Drops finished requests and gives their pages back, or keeps them (reuse).
  void collect();
  const KvPages& pages() const { return pages_; }
  EngineStats stats() const;  // but for generated_tokens

 private:
  // What a finished request leaves in the cache.
  struct Kept {
    std::vector<int32_t> tokens;
    PageTable pages;
    // Every window page is there for rows behind all tokens and for a row at this position: the end of the
    // prompt, from where the next turn of a conversation goes on without what was thought.
    int hold = 0;
  };

  static int hold_of(const Request& request) { return request.prompt_tokens - 1; }
  void keep(Request& request);
  void take_over(Request& request);
  void schedule(const std::shared_ptr<Request>& request, int rows, ScheduledBatch& out);
  static std::vector<Draw> draws_of(const ScheduledBatch& scheduled);

  KvPages pages_;
  int max_rows_, max_batch_;
  EngineStats counted_;
  bool reuse_;
  std::optional<Kept> kept_;
  std::deque<std::shared_ptr<Request>> requests_;  // in order of submission
};

}  // namespace moesaic
