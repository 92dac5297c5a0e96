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
  int max_rows = 512;     // rows of a step, at most the backend's
  int mixed_rows = 0;     // rows of a step in which requests decode, at most; 0: max_rows
  int64_t kv_tokens = 0;  // size of the cache in tokens, at least one context; 0: a context for each sequence
  bool prefix_cache = true;          // beginnings of prompts that are in the cache are not computed again
  int draft_tokens = 0;              // of every draft; 0: as many as pay
  int draft_rows = 0;                // of all drafts of a step, at most; 0: what max_rows leaves
  size_t parallel_logits = 1 << 17;  // with so many of a step the host picks tokens with several threads
  DraftMemory draft = {};            // that a drafter takes on the device
};

// The demand that an engine with these options will pass to kv_layout. Does not check the options.
KvDemand kv_demand(const EngineOptions& options);

// One thread drives an engine, any may ask for its statistics. The backend holds the model of `config` and
// outlives the engine.
class Engine {
 public:
  // What create() will ask of kv_layout, for options that were checked.
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
  // context is an error. cancel: the only way to end a request early. Once it is triggered, from any thread
  // or from the request's own on_token, the request gets no further token and ends as kCancelled, before the
  // next step at the latest.
  Result<std::shared_ptr<Request>> submit(std::vector<int32_t> prompt, const SamplingParams& params,
                                          std::function<void(const SampledToken&)> on_token,
                                          std::stop_token cancel = {});
  // Runs one step. A backend that samples works one step ahead, so that the device never waits for the host:
  // this launches the next step, then takes the tokens of the one before. Otherwise the tokens are those of
  // the step just run. Where a request has or would have a draft, the tokens of the step before are taken
  // first: what comes next depends on them. Not so where the device drafts behind each step: it goes on by
  // itself from the rows that hold (Continuation of core/batch.h). A request whose grammar mask is late skips
  // steps. Cancellations and new requests take effect at the next launch; a token sampled past a request's
  // end is dropped. A device error ends every request and is returned; an error of one request ends that one.
  // An exception, of a callback or for lack of memory, leaves it as it is and ends every request, too; either
  // way the prefix cache is emptied.
  Status step();
  Status run_to_end();
  // From now on blocks of the prefix cache outlive their pages; before any request. fingerprint: of the
  // model. Nothing without a tier.
  Status keep(KvTiers tiers, uint64_t fingerprint);
  // From now on requests get drafts of draft_tokens tokens, 0: of as many as pay. Between steps. Not for a
  // drafter that follows_steps() once there are requests.
  void speculate(std::unique_ptr<Drafter> drafter, int draft_tokens);
  bool idle() const { return scheduler_->idle(); }
  int context() const { return options_.context; }
  const Scheduler& scheduler() const { return *scheduler_; }  // for tests, as the next
  const KvStore* store() const { return store_.get(); }
  // Of this engine, between steps. fingerprint: of the model.
  KvState kv_state(uint64_t fingerprint) {
    return {scheduler_->cached_pages(), backend_, &config_, fingerprint,
            [this](std::span<const int32_t> full_pages) {
              if (speculator_) speculator_->loaded(full_pages);
            }};
  }
  // As of the last step or submission.
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
    std::vector<WantedRow> wanted;  // none: no step runs
    std::vector<RequestRows> rows;
    StepKind kind = StepKind::kPlain;
    std::optional<BegunDraft> begun;  // behind it
    StepAccount account;
    int measured_rows = 0;  // 0: its time says nothing
  };
  std::vector<RequestRows> rows_of(const ScheduledBatch& step) const;
  static void tell_progress(std::span<const RequestRows> step);
  void end_step(std::vector<RequestRows> step, bool begun);
  Status take_sampled();
  void take_token(Request& request, Result<SampledToken> sampled);
  void take_logits(const ScheduledBatch& step);
  // True if its token may be picked before those of the rows before it are taken.
  static bool may_pick(const WantedRow& row);
  // Takes the rows' tokens. logits: [those of `rows` that are for the host, vocab]; sampled: [rows], of the
  // others.
  void take_rows(std::span<const WantedRow> rows, std::span<float> logits, std::span<SampledToken> sampled);
  // Picks the tokens of several requests with several threads. Rows that may not be needed, or that need more
  // than their logits, get none. logits: as above, changed where a token was picked.
  using Picked = std::vector<std::optional<Result<SampledToken>>>;
  Picked pick(std::span<const WantedRow> rows, std::span<float> logits);
  void take_host_row(const WantedRow& row, std::span<float> logits,
                     std::optional<Result<SampledToken>> picked);
  void sample(const std::shared_ptr<Request>& request, std::span<float> logits);
  bool must_take_first();
  Clock::duration drafting_time() const;  // of the batch that was scheduled last
  static int sampled_rows(const ScheduledBatch& step);
  // drafting: seconds of that time which are the drafter's.
  void measure(const StepAccount& account, int rows, StepKind kind, double drafting = 0);
  Status fail(const Status& status);
  static void show_prompt_row(Request& request, std::span<const float> logits);
  void sample_held();
  void wait_for_others() const;
  void measure_prompts(const ScheduledBatch& step, Clock::time_point begun);
  Status run_step();
  void update_stats();

  Backend* backend_;
  ModelConfig config_;
  EngineOptions options_;
  KvLayout layout_;
  std::unique_ptr<KvStore> store_;  // or none; outlives the scheduler
  int prompt_rows_in_flight_ = 0;
  double prompt_rate_ = 0;  // tokens of prompts that were computed in a second, of late
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<float> logits_, host_logits_;
  std::unique_ptr<Speculator> speculator_;
  RunningStep running_;
  Clock::time_point since_;  // when the step that is measured began
  std::vector<SampledToken> sampled_;
  std::unique_ptr<ThreadPool> pickers_;         // from the first step on that has work for them
  std::vector<std::shared_ptr<Request>> held_;  // with Request::held
  uint64_t next_id_ = 1;
  uint64_t generated_ = 0, steps_ = 0;
  double step_seconds_ = 0, device_seconds_ = 0;
  std::unique_ptr<SharedStats> stats_ = std::make_unique<SharedStats>();
};

}  // namespace moesaic
