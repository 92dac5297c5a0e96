// Decides what the next step computes: first one token of every sequence that decodes, then, with what is
// left of the row budget, chunks of prompts. Decoding never waits behind a long prompt.
//
// A request begins when a place and the pages of its whole prompt are free, and takes further ones as it
// grows. A client's own requests begin in the order in which they came. If there are several clients, the one
// with the fewest requests at work is next, and equals take turns, as they do with the rows for prompts. When
// pages run out, the youngest request of a client with most at work gives its own back and waits: later its
// prompt and what it has generated are computed again, as far as the prefix cache has not kept them. A client
// that has at least two places fewer than another gets one of its places in the same way, at once
// (scheduler_turns.cpp). A client that has none gets that of a request that has decoded for kTurn steps.
//
// Drafts (speculator.h) get the rows and pages that are left after that: no request waits or yields for them,
// and pages that only refused tokens needed are given back as soon as these are known.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/fair_queue.h"
#include "engine/request.h"
#include "engine/speculator.h"
#include "moesaic/stats.h"

namespace moesaic {

// A row of a step whose token is sampled, or whose logits the host takes.
struct WantedRow {
  std::shared_ptr<Request> request;
  int draft_row = 0;    // n: the row computes the nth token of the request's draft; 0: it computes none
  bool prompt = false;  // it is a prompt's row whose logits are only shown (Request::on_prompt_logits)
  bool host = true;     // the host takes its logits; false: the device samples its token
  bool edited = false;  // the device samples its token once the sampler's edits() are known
  bool again = false;   // they were not known in time: the row is computed again
  int restarts = 0;     // the request's restarts when the row was scheduled
  // True if the tokens before it are those that were drafted; else nothing is sampled from it.
  bool holds() const { return !request->done() && draft_row == request->draft.accepted(request->tokens); }
};

struct ScheduledBatch {
  Batch batch;
  std::vector<std::shared_ptr<Request>> requests;  // the request of each sequence
  std::vector<WantedRow> wanted;                   // one for each logit row
  bool drafts = false;                             // a request has a draft
  StepAccount account;
};

class Scheduler {
 public:
  // A step shows the logits of at most so many rows of prompts. If the device samples, the host takes the
  // logits of at most so many rows, these included: 64 rows of 200,000 floats are 51 MB.
  static constexpr int kHostRows = 64;
  struct Options {
    int max_rows = 512;  // most rows of a step, at least max_batch
    // A step in which requests decode gets prompts' rows until it has so many. Rows of drafts that were begun
    // ahead do not count.
    int mixed_rows = 512;
    // Such a step lasts as long for a prompt that is deep already: a row behind so many keys counts as two,
    // one behind twice as many as three. Infinite: all rows count the same.
    double keys_as_row = std::numeric_limits<double>::infinity();
    int max_batch = 1;     // requests at a time
    int draft_rows = 512;  // most rows of all drafts of a step
    bool prefix_cache = true;
    bool can_edit = false;  // the backend's
  };
  // A request decodes for so many steps before a client without a place may have its place. It has a step
  // more for each kTurnTokens of its tokens if these are more, since they may have to be computed again.
  static constexpr int kTurn = 512, kTurnTokens = 32;

  // The pools hold at least one request of any length that is submitted, and the windows of max_batch
  // (kv_layout sees to both).
  Scheduler(const KvLayout& layout, int window, const Options& options)
      : pages_(layout, window), options_(options) {
    running_.reserve(static_cast<size_t>(options.max_batch));  // so a request that begins is not lost
  }

  // Drafts come from it from now on; it outlives the scheduler.
  void speculate(Speculator* speculator) { speculator_ = speculator; }
  // From now on blocks outlive their pages; before any request. It outlives the scheduler.
  void keep(KvStore* store);
  // Call it when the step that was in flight at the last next_batch() is taken: it begins what that planned.
  void begin_fetches();
  // True if a request waits for parts from the store.
  bool fetches() const;
  // Offers the store all blocks of running requests that it was not offered before, and frees their pages.
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  void submit(std::shared_ptr<Request> request);
  bool idle() const { return running_.empty() && waiting_.size() == 0; }
  // Makes the next step. It counts as computed from here on, so the caller must run it or fail all. It is
  // empty if there is no request, or none but those that end with the token in flight. device_samples: the
  // backend may sample the tokens, if every request of the step allows it. prompt_rate: tokens of prompts
  // that are computed in a second; 0: not known.
  ScheduledBatch next_batch(bool device_samples, double prompt_rate = 0);
  // True if a request whose token is in flight would get a draft if the token were known.
  bool would_draft();
  // True if the next step may be launched while drafts are in flight that only the device knows: the device
  // samples whatever comes next.
  bool can_continue() const;
  // Has an edited row of the step that was launched last computed again once its mask is there. The steps
  // before must be taken.
  static void compute_again(WantedRow& row);
  // A running request that waits for its mask; null: none does.
  const Request* awaiting_mask() const;
  // Begins a draft behind the step, which was just launched; nothing: none was begun.
  std::optional<BegunDraft> draft_ahead(const ScheduledBatch& step);
  // The tokens of a request's rows in the running step are taken: the rows of a draft that were refused count
  // as not computed, and their pages are given back. Returns how many these are.
  int end_step(Request& request);
  // Ends every request with the device's error.
  void fail_all(const Status& status);
  // Drops finished requests and gives their pages back.
  void collect();
  EngineStats stats() const;  // all but generated_tokens
  // For kv_state.h, between steps; null without a prefix cache.
  KvPages* cached_pages() { return options_.prefix_cache ? &pages_ : nullptr; }
  // Aborts unless every page is accounted for. For tests.
  void check() const;

 private:
  void cache_blocks(Request& request);
  bool begin(Request& request);
  int adopt(Request& request);
  void begun(Request& request, int cached);
  void take_fetched(double prompt_rate);
  void take_fetched(Request& request);
  bool compute_instead(Request& request);
  void release(Request& request);
  bool make_room(Request& request);
  void start(std::shared_ptr<Request> request);
  void preempt_last();
  void preempt(const std::shared_ptr<Request>& request);
  // These are in scheduler_turns.cpp.
  const std::shared_ptr<Request>* next_waiting() const;
  std::shared_ptr<Request> take_next();
  void order_running();
  void admit_newcomers();
  bool has_room_for(const Request& request, std::span<const std::shared_ptr<Request>> yielding) const;
  std::optional<std::vector<std::shared_ptr<Request>>> who_yields_to(const Request& request) const;
  std::vector<std::shared_ptr<Request>> prompts_in_turn() const;
  bool ended(Request& request);
  // As std::erase_if(running_, over), but running_ has no gap while `over` is called, whose callbacks may
  // throw.
  template <typename Over>
  void erase_running(const Over& over) {
    for (size_t i = 0; i < running_.size();) {
      if (over(running_[i])) {
        running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
  }
  void check_shares() const;
  static void want_prompt_rows(const std::shared_ptr<Request>& request, int first_row, int rows,
                               ScheduledBatch& out);
  // The next step in the making. Pages are reserved as it grows.
  struct Plan {
    struct Part {
      std::shared_ptr<Request> request;
      int rows = 0;  // without a draft
    };
    std::vector<Part> parts;
    // The device samples, and the host takes the logits of some rows: these are bounded.
    bool device = false;
    int most_rows = 0;              // no prompt's rows are added beyond so many
    int most_prompts = 0;           // the most of `prompts`
    uint64_t host_rows_before = 0;  // a greater Request::host_row is of this step
    int rows = 0;                   // rows of all parts
    bool decodes = false;           // requests decode
    double prompts = 0;             // rows of prompts, as Options::keys_as_row counts them
    int host_rows = 0;              // those among them whose logits the host takes
    int rows_ahead = 0;             // those among them that verify drafts which only the device knows
  };
  void plan(const std::shared_ptr<Request>& request, int rows, Plan& plan);
  void admit(Plan& plan);
  bool still_lacks_pages(const Request& request) const;
  int rows_for(const Request& request, const Plan& plan) const;
  // A prompt's next row in a step in which requests decode, as keys_as_row counts it.
  double row_cost(const Request& request) const;
  // Says how the device samples the token that is so many behind the request's last one once its edits are
  // known; nothing: it cannot.
  std::optional<DeviceSampling> edited_sampling(const Request& request, int ahead) const;
  // True if the host has to sample the token that the request's next rows give.
  bool host_samples(const Request& request) const;
  void give_host_turns();
  StepAccount add_drafts(const Plan& plan);
  // Returns how many rows of drafts fit into a step that has so many other rows.
  int draft_room(int rows) const { return std::min(options_.max_rows - rows, options_.draft_rows); }
  int reserve_draft(Request& request, int first, int tokens);
  Speculator::Reserve reserve() {
    return [this](Request& r, int first, int tokens) { return reserve_draft(r, first, tokens); };
  }
  static void schedule(const Plan::Part& part, ScheduledBatch& out);
  static void want_row(WantedRow wanted, int row, ScheduledBatch& out);
  void set_sampling(ScheduledBatch& scheduled) const;
  static void launch(const ScheduledBatch& scheduled);

  KvPages pages_;
  Options options_;
  Speculator* speculator_ = nullptr;
  KvStore* store_ = nullptr;
  EngineStats counted_;
  bool doubtful_ = false;  // an error has left nobody knowing what the pages hold
  // They get rows in this order, and the last one yields: the first ones of all clients as they began, then
  // the second ones, and so on.
  std::vector<std::shared_ptr<Request>> running_;
  FairQueue<std::shared_ptr<Request>> waiting_{SIZE_MAX};
  std::unordered_map<std::string, std::shared_ptr<ClientShare>> clients_;  // with requests
  uint64_t begun_ = 0, step_ = 0, host_rows_ = 0;                          // so far
  // The request that could not begin for lack of pages, and what there was then.
  struct {
    uint64_t request = 0;
    int free_pages = 0;
    size_t running = 0;
    uint64_t step = 0;
  } lacking_;
};

}  // namespace moesaic
