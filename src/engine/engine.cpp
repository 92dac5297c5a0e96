#include "engine/engine.h"

#include <algorithm>

#include "base/error.h"
#include "engine/kv_layout.h"
#include "model/forward.h"

namespace moesaic {
namespace {

constexpr int kDefaultContext = 8192;

Status validate(const EngineOptions& o, const ModelConfig& config) {
  if (o.context < 1 || o.context > config.max_context)
    return invalid("a context of {} tokens: the model takes 1 to {}", o.context, config.max_context);
  if (o.max_batch < 1) return invalid("{} sequences at a time: expected at least 1", o.max_batch);
  if (o.max_rows < o.max_batch)
    return invalid("steps of {} rows are too short for {} sequences at a time", o.max_rows, o.max_batch);
  if (o.reuse && o.max_batch != 1) return invalid("reuse needs one sequence at a time, not {}", o.max_batch);
  return {};
}

}  // namespace

Result<KvDemand> Engine::demand(const ModelConfig& config, const EngineOptions& options) {
  EngineOptions o = options;
  if (o.context == 0) o.context = std::min(config.max_context, kDefaultContext);
  RETURN_IF_ERROR(validate(o, config));
  return KvDemand{.sequences = o.max_batch, .context = o.context, .max_rows = o.max_rows, .hold = o.reuse};
}

Result<Engine> Engine::create(Backend& backend, const ModelConfig& config, const EngineOptions& options) {
  ASSIGN_OR_RETURN(const KvDemand demand, Engine::demand(config, options));
  EngineOptions o = options;
  o.context = demand.context;
  Engine engine(backend, config, o);
  ASSIGN_OR_RETURN(const KvLayout layout, kv_layout(config, demand));
  RETURN_IF_ERROR(check_kv_memory(layout, config, backend));
  RETURN_IF_ERROR(backend.alloc_kv(layout));
  engine.scheduler_ = std::make_unique<Scheduler>(layout, config.window, o.max_rows, o.max_batch, o.reuse);
  return engine;
}

Result<std::shared_ptr<Request>> Engine::submit(std::vector<int32_t> prompt, const SamplingParams& params,
                                                std::function<bool(const SampledToken&)> on_token) {
  RETURN_IF_ERROR(validate(params, config_.vocab));
  if (prompt.empty()) return invalid("the prompt is empty");
  if (static_cast<int>(prompt.size()) >= options_.context)
    return invalid(
        "the prompt has {} tokens, the context holds {}; shorten it or enlarge the context (--ctx)",
        prompt.size(), options_.context);
  for (const int32_t t : prompt) {
    if (t < 0 || t >= config_.vocab)
      return invalid("prompt token {} is outside the vocabulary of {}", t, config_.vocab);
  }
  auto request = std::make_shared<Request>();
  request->id = next_id_++;
  request->prompt_tokens = static_cast<int>(prompt.size());
  request->params = params;
  request->sampler = std::make_unique<Sampler>(params, prompt);
  request->tokens = std::move(prompt);
  request->on_token = std::move(on_token);
  scheduler_->submit(request);
  return request;
}

void Engine::take_token(Request& r, std::span<float> logits) {
  auto sampled = r.sampler->sample(logits);
  if (!sampled.ok()) {
    r.error = sampled.status();
    r.finish = FinishReason::kError;
    return;
  }
  const auto& stops = r.params.stop_tokens;
  if (std::find(stops.begin(), stops.end(), sampled->token) != stops.end()) {
    r.finish = FinishReason::kStop;
    r.on_token(sampled.value());
    return;
  }
  r.tokens.push_back(sampled->token);
  if (!r.on_token(sampled.value()) || r.cancelled) r.finish = FinishReason::kCancelled;
  const bool full = static_cast<int>(r.tokens.size()) >= options_.context;
  if (!r.done() && (full || (r.params.max_tokens > 0 && r.generated() >= r.params.max_tokens)))
    r.finish = FinishReason::kLength;
}

Status Engine::step() {
  scheduler_->collect();  // what was cancelled since the last step is not computed any further
  const ScheduledBatch scheduled = scheduler_->next_batch();
  logits_.resize(scheduled.wanted.size() * static_cast<size_t>(config_.vocab));
  Status status;
  if (scheduled.batch.rows() > 0) status = forward(*backend_, config_, scheduled.batch, logits_);
  if (status.ok()) {
    for (const auto& [request, rows] : scheduled.advances) request->computed += rows;
    for (size_t i = 0; i < scheduled.wanted.size(); ++i) {
      take_token(*scheduled.wanted[i], std::span(logits_).subspan(i * config_.vocab, config_.vocab));
    }
  } else {
    scheduler_->fail_all(status);
  }
  scheduler_->collect();
  return status;
}

Status Engine::run_to_end() {
  while (!idle()) RETURN_IF_ERROR(step());
  return {};
}

}  // namespace moesaic
