// The loop that turns requests into tokens: schedule a batch, run it, sample, repeat.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>

#include "backend/backend.h"
#include "base/thread_pool.h"
#include "engine/kv_layout.h"
#include "engine/kv_state.h"
#include "engine/scheduler.h"
#include "moesaic/stats.h"

namespace moesaic {

struct EngineOptions {
  int context = 0;        // longest sequence in tokens; 0: the model's maximum
  int max_batch = 1;      // sequences at a time
  int max_rows = 512;     // most rows of a step, at most the backend's
  int mixed_rows = 0;     // most rows of a step in which requests decode; 0: max_rows
  int64_t kv_tokens = 0;  // size of the cache in tokens, at least one context; 0: a context for each sequence
  bool prefix_cache = true;          // beginnings of prompts that are in the cache are not computed again
  int draft_tokens = 0;              // tokens of every draft; 0: as many as pay
  int draft_rows = 0;                // most rows of all drafts of a step; 0: what max_rows leaves
  size_t parallel_logits = 1 << 17;  // with so many logits of a step the host picks tokens in several threads
  DraftMemory draft = {};            // memory that a drafter takes on the device
};

// An engine with these options passes this demand to kv_layout. The options are not checked.
KvDemand kv_demand(const EngineOptions& options);

// One thread drives an engine, any may ask for its statistics. The backend holds the model of `config` and
// outlives the engine.
class Engine {
 public:
  // Checks the options and returns what create() will ask of kv_layout.
  static Result<KvDemand> demand(const ModelConfig& config, const EngineOptions& options);
  // Allocates the KV cache. drafter: null for none.
  static Result<Engine> create(Backend& backend, const ModelConfig& config, const EngineOptions& options,
                               std::unique_ptr<Drafter> drafter = nullptr);

  // submit() in two parts. prepare() checks, from any thread; add() queues, between steps.
  Result<std::shared_ptr<Request>> prepare(std::vector<int32_t> prompt, const SamplingParams& params,
                                           std::function<void(const SampledToken&)> on_token,
                                           std::stop_token cancel = {}) const;
  void add(std::shared_ptr<Request> request);
  // Checks prompt and parameters: an empty prompt, a token outside the vocabulary or a prompt as long as the
  // context is an error. cancel is the only way to end a request early. Once it is triggered, from any thread
  // or from the request's own on_token, the request gets no further token and ends as kCancelled, before the
  // next step at the latest.
  Result<std::shared_ptr<Request>> submit(std::vector<int32_t> prompt, const SamplingParams& params,
                                          std::function<void(const SampledToken&)> on_token,
                                          std::stop_token cancel = {});
  // Runs one step. A backend that samples works one step ahead, so that the device never waits for the host:
  // this launches the next step, then takes the tokens of the one before. Otherwise the tokens are those of
  // the step just run. If a request has or would have a draft, the tokens of the step before are taken first,
  // as what comes next depends on them. A device that drafts behind each step goes on by itself from the rows
  // that hold instead (Continuation of core/batch.h). A request whose grammar mask is late skips steps.
  // Cancellations and new requests take effect at the next launch; a token sampled past a request's end is
  // dropped. A device error ends every request and is returned; an error of one request ends that one. An
  // exception, of a callback or for lack of memory, leaves it as it is and ends every request, too; either
  // way the prefix cache is emptied.
  Status step();
  Status run_to_end();
  // From now on blocks of the prefix cache outlive their pages. Call it before any request. fingerprint: of
  // the model. Without a tier it does nothing.
  Status keep(KvTiers tiers, uint64_t fingerprint);
  // From now on requests get drafts of draft_tokens tokens, or of as many as pay if that is 0. Call it
  // between steps, and before any request if the drafter follows_steps().
  void speculate(std::unique_ptr<Drafter> drafter, int draft_tokens);
  bool idle() const { return scheduler_->idle(); }
  int context() const { return options_.context; }
  const Scheduler& scheduler() const { return *scheduler_; }  // for tests, as the next one
  const KvStore* store() const { return store_.get(); }
  // Saves and loads what is in this engine's prefix cache, between steps. fingerprint: of the model.
  KvState kv_state(uint64_t fingerprint) {
    return {scheduler_->cached_pages(), backend_, &config_, fingerprint,
            [this](std::span<const int32_t> full_pages) {
              if (speculator_) speculator_->loaded(full_pages);
            }};
  }
  // They are as of the last step or submission.
  EngineStats stats() const;

 private:
  struct SharedStats {
    std::mutex mutex;
    EngineStats stats;
  };

  Engine(Backend& backend, const ModelConfig& config, const EngineOptions& options)
      : backend_(&backend), config_(config), options_(options) {}
  using Clock = std::chrono::steady_clock;
  // The rows of a request in a step, and the pages that they were written to: the request may have others
  // when they are done, or none, if it was preempted.
  struct RequestRows {
    std::shared_ptr<Request> request;
    int prompt_read = 0;  // tokens of the prompt that are read when the step is done; 0: it reads none of it
    ComputedRows rows;
    std::vector<int32_t> full_pages;
  };
  // A step whose tokens the device samples, until they are taken.
  struct RunningStep {
    std::vector<WantedRow> wanted;  // empty: no step runs
    std::vector<RequestRows> rows;
    StepKind kind = StepKind::kPlain;
    std::optional<BegunDraft> begun;  // the draft that was begun behind it
    StepAccount account;
    int measured_rows = 0;  // 0: its time says nothing about steps
  };
  std::vector<RequestRows> rows_of(const ScheduledBatch& step) const;
  static void tell_progress(std::span<const RequestRows> step);
  void end_step(std::span<RequestRows> step, bool begun);
  Status take_sampled();
  void take_token(Request& request, Result<SampledToken> sampled);
  void take_logits(const ScheduledBatch& step);
  // True if its token may be picked before those of the rows before it are taken.
  static bool may_pick(const WantedRow& row);
  Status edit_rows(ScheduledBatch& step);
  // Takes the rows' tokens. logits: [host rows, vocab]; sampled: [rows], used for the other rows.
  void take_rows(std::span<const WantedRow> rows, std::span<float> logits, std::span<SampledToken> sampled);
  // Picks the tokens of several requests in several threads. Rows that may not be needed, or that need more
  // than their logits, get none. logits: as above, changed where a token was picked.
  using Picked = std::vector<std::optional<Result<SampledToken>>>;
  Picked pick(std::span<const WantedRow> rows, std::span<float> logits);
  void take_host_row(const WantedRow& row, std::span<float> logits,
                     std::optional<Result<SampledToken>> picked);
  void sample(const std::shared_ptr<Request>& request, std::span<float> logits);
  bool must_take_first();
  Clock::duration drafting_time() const;  // for the batch that was scheduled last
  static int sampled_rows(const ScheduledBatch& step);
  // drafting: seconds of that time which are the drafter's.
  void measure(const StepAccount& account, int rows, StepKind kind, double drafting = 0);
  Status fail(const Status& status);
  static void show_prompt_row(Request& request, std::span<const float> logits);
  void sample_held();
  void wait_for_others() const;
  void measure_prompts(const ScheduledBatch& step, Clock::time_point begun);
  Status run_step();
  void forget_steps();
  void update_stats();

  Backend* backend_;
  ModelConfig config_;
  EngineOptions options_;
  KvLayout layout_;
  std::unique_ptr<KvStore> store_;  // may be null; outlives the scheduler
  int prompt_rows_in_flight_ = 0;
  double prompt_rate_ = 0;  // tokens of prompts that are computed in a second, lately
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<float> logits_, host_logits_;
  std::unique_ptr<Speculator> speculator_;
  RunningStep running_;
  Clock::time_point since_;  // when the step that is measured began
  std::vector<SampledToken> sampled_;
  std::unique_ptr<ThreadPool> pickers_;         // null before the first step that has work for them
  std::vector<std::shared_ptr<Request>> held_;  // the requests that have Request::held
  bool forgets_ = false;                        // the backend may have steps that nobody waits for
  uint64_t next_id_ = 1;
  uint64_t generated_ = 0, steps_ = 0;
  double step_seconds_ = 0, device_seconds_ = 0;
  std::unique_ptr<SharedStats> stats_ = std::make_unique<SharedStats>();
};

}  // namespace moesaic
