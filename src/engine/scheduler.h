// Decides what the next step computes: first one token of every sequence that decodes, then, with what is
// left of the row budget, chunks of prompts, first come first served. Decoding never waits behind a long
// prompt.
//
// A request begins when the pages of its whole prompt are free, and takes further ones as it grows. Where
// they run out the youngest gives its own back and waits: later its prompt and what it has generated are
// computed again, as far as the prefix cache has not kept them.
//
// Drafts (speculator.h) get the rows and pages that are left after that: no request waits or yields for them,
// and pages that only refused tokens needed are given back as soon as these are known.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "engine/request.h"
#include "engine/speculator.h"
#include "moesaic/stats.h"

namespace moesaic {

struct ScheduledBatch {
  Batch batch;
  std::vector<std::shared_ptr<Request>> requests;  // of each sequence
  std::vector<std::shared_ptr<Request>> wanted;    // whose token each logit row gives
  // [wanted] true: the row is of the prompt, and its logits are only shown (Request::on_prompt_logits).
  std::vector<bool> prompt_rows;
  // [wanted] 0, or n: the row is of the nth token of the request's draft.
  std::vector<int> draft_rows;
  bool drafts = false;  // there is a draft
  StepAccount account;
};

class Scheduler {
 public:
  struct Options {
    int max_rows = 512;  // of a step, at least max_batch
    int max_batch = 1;   // requests at a time
    bool prefix_cache = true;
  };
  // The pools hold at least one request of any length that is submitted, and the windows of max_batch
  // (kv_layout sees to both).
  Scheduler(const KvLayout& layout, int window, const Options& options)
      : pages_(layout, window), options_(options) {}

  // Gets drafts from it from now on; it outlives the scheduler.
  void speculate(Speculator* speculator) { speculator_ = speculator; }
  void submit(std::shared_ptr<Request> request) { waiting_.push_back(std::move(request)); }
  bool idle() const { return running_.empty() && waiting_.empty(); }
  // The next step. It counts as computed from here on, so the caller must run it or fail all. Empty if there
  // is no request, or none but those that end with the token in flight. device_samples: the backend may
  // sample the tokens, where every request of the step allows it.
  ScheduledBatch next_batch(bool device_samples);
  // Whether a request whose token is in flight would get a draft if the token were known.
  bool would_draft();
  // Whether the next step may be launched while drafts are in flight that only the device knows: it samples
  // whatever comes next.
  bool can_continue() const;
  // Begins a draft behind the step, which was just launched; nothing where none was begun.
  std::optional<BegunDraft> draft_ahead(const ScheduledBatch& step);
  // What the model sampled of a request's step is taken: where it had a draft, the refused rows count as not
  // computed, their pages are given back, and the draft is over.
  void end_draft(Request& request);
  // Ends every request with the device's error.
  void fail_all(const Status& status);
  // Drops finished requests and gives their pages back.
  void collect();
  EngineStats stats() const;  // all but generated_tokens
  // Between steps, for kv_state.h; null without a prefix cache.
  KvPages* cached_pages() { return options_.prefix_cache ? &pages_ : nullptr; }
  // Aborts unless every page is accounted for. For tests.
  void check() const;

 private:
  void cache_blocks(Request& request);
  bool begin(Request& request);
  bool make_room(Request& request);
  void preempt_youngest();
  static void want_prompt_rows(const std::shared_ptr<Request>& request, int first_row, int rows,
                               ScheduledBatch& out);
  // The next step in the making. Pages are reserved as it grows.
  struct Plan {
    struct Part {
      std::shared_ptr<Request> request;
      int rows = 0;  // without a draft
    };
    std::vector<Part> parts;
    int rows = 0, shown_rows = 0;  // of all parts; of these, prompt rows whose logits are shown
    int rows_ahead = 0;            // and those of drafts that only the device knows
  };
  void plan(const std::shared_ptr<Request>& request, int rows, Plan& plan);
  void admit(Plan& plan);
  int rows_for(const Request& request, const Plan& plan) const;
  StepAccount add_drafts(const Plan& plan);
  // Speculator::Reserve. first: position of its next row, at least.
  int reserve_draft(Request& request, int first, int tokens);
  static void schedule(const Plan::Part& part, ScheduledBatch& out);
  static void schedule_continuation(const std::shared_ptr<Request>& request, ScheduledBatch& out);
  static void want_row(const std::shared_ptr<Request>& request, int row, int draft_row, ScheduledBatch& out);
  static void set_sampling(ScheduledBatch& scheduled);

  KvPages pages_;
  Options options_;
  Speculator* speculator_ = nullptr;
  EngineStats counted_;
  bool doubtful_ = false;  // after an error nobody knows what the pages hold
  // Both by age; whoever runs is older than all that wait.
  std::deque<std::shared_ptr<Request>> running_, waiting_;
};

}  // namespace moesaic
