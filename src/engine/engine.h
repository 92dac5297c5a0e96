// The loop that turns requests into tokens: schedule a batch, run it, sample, repeat.
#pragma once

#include <memory>
#include <mutex>

#include "backend/backend.h"
#include "engine/kv_layout.h"
#include "engine/scheduler.h"
#include "moesaic/stats.h"

namespace moesaic {

struct EngineOptions {
  int context = 0;           // tokens that one sequence may reach; 0: 8192 or the model's, whichever is less
  int max_batch = 1;         // sequences at a time
  int max_rows = 512;        // rows of a step, at most the backend's
  int64_t kv_tokens = 0;     // that the cache holds, at least one context; 0: a context for each sequence
  bool prefix_cache = true;  // what prompts have in common with what is in the cache is not computed again
};

// One thread drives an engine, any may ask for its statistics. The backend holds the model of `config` and
// outlives the engine.
class Engine {
 public:
  // What create() will ask of kv_layout.
  static Result<KvDemand> demand(const ModelConfig& config, const EngineOptions& options);
  // Allocates the KV cache.
  static Result<Engine> create(Backend& backend, const ModelConfig& config, const EngineOptions& options);

  // Checks prompt and parameters: an empty prompt, a token outside the vocabulary or a prompt as long as the
  // context is an error. cancel: the only way to end a request early. Once it is triggered, from any thread
  // or from the request's own on_token, the request gets no further token and ends as kCancelled, before the
  // next step at the latest.
  Result<std::shared_ptr<Request>> submit(std::vector<int32_t> prompt, const SamplingParams& params,
                                          std::function<void(const SampledToken&)> on_token,
                                          std::stop_token cancel = {});
  // Launches a step and takes the tokens of one: of the same, or, where the backend draws them, of the step
  // before, so that the device never waits for the host. A request whose grammar's mask takes long sits steps
  // out. What is cancelled or submitted meanwhile counts from the next launch on; a token drawn beyond a
  // request's end is dropped. An error of the device ends every request and is returned;
  // an error of one request ends that one.
  Status step();
  Status run_to_end();
  bool idle() const { return scheduler_->idle(); }
  int context() const { return options_.context; }
  const Scheduler& scheduler() const { return *scheduler_; }  // for tests
  // As of the last step or submission.
  EngineStats stats() const;

 private:
  struct Published {
    std::mutex mutex;
    EngineStats stats;
  };

  Engine(Backend& backend, const ModelConfig& config, const EngineOptions& options)
      : backend_(&backend), config_(config), options_(options) {}
  Status take_drawn();
  void take_token(Request& request, Result<SampledToken> sampled);
  void sample(const std::shared_ptr<Request>& request, std::span<float> logits);
  void sample_held();
  void wait_for_masks() const;
  Status run_step();
  void publish();

  Backend* backend_;
  ModelConfig config_;
  EngineOptions options_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<float> logits_;
  std::vector<std::shared_ptr<Request>> under_way_;  // whose tokens the step that runs draws
  std::vector<SampledToken> drawn_;
  std::vector<std::shared_ptr<Request>> held_;  // with Request::held
  uint64_t next_id_ = 1;
  uint64_t generated_ = 0;
  std::unique_ptr<Published> published_ = std::make_unique<Published>();
};

}  // namespace moesaic
