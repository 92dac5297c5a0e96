#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/seconds.h"
#include "drafting/make_drafter.h"
#include "model/forward.h"

namespace moesaic {
namespace {

constexpr auto kMaskWait = std::chrono::milliseconds(1);

}  // namespace

Result<std::shared_ptr<Request>> Engine::submit(std::vector<int32_t> prompt, const SamplingParams& params,
                                                std::function<void(const SampledToken&)> on_token,
                                                std::stop_token cancel) {
  ASSIGN_OR_RETURN(auto request, prepare(std::move(prompt), params, std::move(on_token), std::move(cancel)));
  add(request);
  return request;
}

void Engine::add(std::shared_ptr<Request> request) {
  request->id = next_id_++;
  scheduler_->submit(std::move(request));
  update_stats();
}

Result<std::shared_ptr<Request>> Engine::prepare(std::vector<int32_t> prompt, const SamplingParams& params,
                                                 std::function<void(const SampledToken&)> on_token,
                                                 std::stop_token cancel) const {
  RETURN_IF_ERROR(validate(params, config_.vocab));
  if (prompt.empty()) return invalid("the prompt is empty");
  if (static_cast<int>(prompt.size()) >= options_.context)
    return invalid(
        "this model's maximum context length is {} tokens. However, the prompt has {} tokens; shorten it or "
        "enlarge the context (--ctx)",
        options_.context, prompt.size());
  for (const int32_t t : prompt) {
    if (t < 0 || t >= config_.vocab)
      return invalid("prompt token {} is outside the vocabulary of {}", t, config_.vocab);
  }
  auto request = std::make_shared<Request>();
  request->prompt_tokens = static_cast<int>(prompt.size());
  request->limit = options_.context;
  if (params.max_tokens > 0)
    request->limit =
        request->prompt_tokens + std::min(params.max_tokens, options_.context - request->prompt_tokens);
  request->params = params;
  request->sampler = std::make_unique<Sampler>(params, prompt);
  request->tokens = std::move(prompt);
  request->on_token = std::move(on_token);
  request->cancel = std::move(cancel);
  return request;
}

// The one place that recognises a stop token.
void Engine::take_token(Request& r, Result<SampledToken> sampled) {
  if (!sampled.ok()) {
    r.error = sampled.status();
    r.finish = FinishReason::kError;
    return;
  }
  ++generated_;
  const auto& stops = r.params.stop_tokens;
  sampled->is_stop = std::find(stops.begin(), stops.end(), sampled->token) != stops.end();
  if (sampled->is_stop) {
    r.finish = FinishReason::kStop;
  } else {
    if (r.computed >= std::ssize(r.tokens)) r.proven = static_cast<int>(r.tokens.size());
    r.tokens.push_back(sampled->token);
  }
  r.on_token(sampled.value());
  if (!r.done() && r.cancel.stop_requested()) r.finish = FinishReason::kCancelled;
  if (!r.done() && std::ssize(r.tokens) >= r.limit) r.finish = FinishReason::kLength;
}

// Call it when the step before is taken. A request that has ended by now has its last row beyond its tokens.
// Only a drafter has to know which rows were computed where.
std::vector<Engine::RequestRows> Engine::rows_of(const ScheduledBatch& step) const {
  std::vector<RequestRows> rows;
  for (size_t i = 0; i < step.requests.size(); ++i) {
    const Request& r = *step.requests[i];
    if (r.done()) continue;
    const Sequence& s = step.batch.sequences[i];
    const bool prompt = s.context - s.rows < r.prompt_tokens && r.generated() == 0;
    rows.push_back({.request = step.requests[i],
                    .prompt_read = prompt ? std::min(s.context, r.prompt_tokens) : 0,
                    .rows = {},
                    .full_pages = {}});
    if (!speculator_) continue;
    const bool moves = most_moved(step.batch, static_cast<int>(i)) > 0;
    rows.back().rows = {.request = r.id,
                        .sequence = static_cast<int>(i),
                        .first_row = s.first_row,
                        .first_position = moves ? static_cast<int>(r.tokens.size()) - 1 : s.context - s.rows,
                        .rows = s.rows};
    rows.back().full_pages = s.full_pages;
  }
  return rows;
}

void Engine::tell_progress(std::span<const RequestRows> step) {
  for (const RequestRows& r : step)
    if (r.prompt_read > 0) r.request->tell_prompt(r.prompt_read);
}

// The tokens of its rows are taken, so it is known which rows hold.
void Engine::end_step(std::span<RequestRows> step, bool begun) {
  std::vector<ComputedRows> hold;
  for (auto& [request, prompt_read, rows, full_pages] : step) {
    rows.rows -= scheduler_->end_step(*request);
    rows.tokens = request->tokens, rows.full_pages = full_pages;
    hold.push_back(rows);
  }
  if (speculator_) speculator_->computed(hold, begun);
}

Status Engine::take_sampled() {
  RunningStep step = std::exchange(running_, {});
  if (step.wanted.empty()) return {};
  std::erase_if(step.rows,
                [](const RequestRows& r) { return r.request->done(); });  // the drafter knows already
  sampled_.resize(step.wanted.size());
  host_logits_.resize(std::ranges::count_if(step.wanted, &WantedRow::host) *
                      static_cast<size_t>(config_.vocab));
  const Clock::time_point begin = Clock::now();
  const Status done = backend_->sampled(sampled_, host_logits_);
  device_seconds_ += seconds_since(begin);
  RETURN_IF_ERROR(done);
  tell_progress(step.rows);
  take_rows(step.wanted, host_logits_, sampled_);
  end_step(step.rows, step.begun.has_value());
  double drafting = 0;
  if (step.begun) {
    ASSIGN_OR_RETURN(drafting, speculator_->take(*step.begun));
  }
  measure(step.account, step.measured_rows, step.kind, drafting);
  return {};
}

void Engine::take_rows(std::span<const WantedRow> rows, std::span<float> logits,
                       std::span<SampledToken> sampled) {
  const size_t vocab = config_.vocab;
  Picked picked = pick(rows, logits);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].host) {
      take_host_row(rows[i], logits.first(vocab), std::move(picked[i]));
      logits = logits.subspan(vocab);
      continue;
    }
    Request& r = *rows[i].request;
    if (rows[i].holds() && !rows[i].again) take_token(r, r.sampler->take(std::move(sampled[i])));
  }
}

// The tokens before these rows are taken, and the step that computes them has hardly begun: there is time to
// wait a little for a mask.
Status Engine::edit_rows(ScheduledBatch& step) {
  const Clock::time_point deadline = Clock::now() + kMaskWait;
  std::vector<EditedRow> rows;
  for (size_t i = 0; i < step.wanted.size(); ++i) {
    WantedRow& row = step.wanted[i];
    Request& r = *row.request;
    if (!row.edited || r.done()) continue;
    if (!r.sampler->ready()) r.sampler->wait_until(deadline);
    if (!r.sampler->ready()) {
      Scheduler::compute_again(row);
      continue;
    }
    Result<LogitEdits> edits = r.sampler->edits(static_cast<size_t>(config_.vocab));
    if (!edits.ok()) {
      take_token(r, edits.status());
      continue;
    }
    rows.push_back({.row = static_cast<int32_t>(i),
                    .sampling = r.sampler->edited_sampling(0).value(),
                    .edits = std::move(edits.value())});
  }
  return rows.empty() ? Status() : backend_->edit_rows(rows);
}

bool Engine::may_pick(const WantedRow& row) {
  const Request& r = *row.request;
  return row.host && !row.prompt && row.draft_row == 0 && row.holds() && row.restarts == r.restarts &&
         r.held.empty() && !r.on_logits && !r.change_logits && r.sampler->ready();
}

// A row takes some 0.1 to 2 ms. A token that cannot be picked for lack of memory ends its request: its logits
// may have been changed already.
Engine::Picked Engine::pick(std::span<const WantedRow> rows, std::span<float> logits) {
  constexpr int kMostThreads = 8;
  struct Part {
    size_t row;
    std::span<float> logits;
  };
  Picked picked(rows.size());
  std::vector<Part> parts;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (may_pick(rows[i])) parts.push_back({i, logits.first(config_.vocab)});
    if (rows[i].host) logits = logits.subspan(config_.vocab);
  }
  if (parts.size() < 2 || parts.size() * config_.vocab < options_.parallel_logits) return picked;
  // A host that computes the model has as many threads as its user gave it.
  if (!pickers_)
    pickers_ = std::make_unique<ThreadPool>(
        std::min(kMostThreads, backend_->can_sample() ? plan_threads(read_cpu_topology(), 0, false).threads
                                                      : backend_->caps().threads));
  pickers_->for_each(std::ssize(parts), [&](int64_t i, int) {
    const Part& part = parts[i];
    try {
      picked[part.row] = rows[part.row].request->sampler->pick(part.logits);
    } catch (const std::bad_alloc&) {
      picked[part.row] = Status(StatusCode::kOutOfMemory, "out of memory");
    }
  });
  return picked;
}

// A request that was preempted since computes the row again.
void Engine::take_host_row(const WantedRow& row, std::span<float> logits,
                           std::optional<Result<SampledToken>> picked) {
  Request& r = *row.request;
  if (row.restarts != r.restarts) return;
  if (row.prompt) return show_prompt_row(r, logits);
  if (!row.holds()) return;
  if (!picked) return sample(row.request, logits);
  take_token(r, picked->ok() ? r.sampler->take(std::move(picked->value())) : picked->status());
}

// Returns 0 for a step that computes a prompt too.
int Engine::sampled_rows(const ScheduledBatch& step) {
  return std::ssize(step.batch.logit_rows) == step.batch.rows() ? step.batch.rows() : 0;
}

// On a host that samples, a step's time is the forward pass. On a device it is from the tokens before it to
// its own, so that in a pipeline only one step counts. Where the pipeline stops that has the host's part in
// it, but for the drafter's.
void Engine::measure(const StepAccount& account, int rows, StepKind kind, double drafting) {
  const Clock::time_point now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - since_).count();
  if (speculator_) speculator_->measured(account, rows, kind, std::max(0.0, seconds - drafting));
  since_ = now;
}

// The logits of a step that the host samples.
void Engine::take_logits(const ScheduledBatch& step) {
  std::vector<RequestRows> rows = rows_of(step);
  tell_progress(rows);
  take_rows(step.wanted, logits_, {});
  end_step(rows, false);
}

// If its grammar's mask is not there yet the token is sampled later. Until then there is nothing to schedule,
// unless the request is preempted: it is computed again, to the logits that it holds.
void Engine::sample(const std::shared_ptr<Request>& request, std::span<float> logits) {
  Request& r = *request;
  if (r.done() || !r.held.empty()) return;
  if (r.sampler->ready()) {
    const int position = static_cast<int>(r.tokens.size()) - 1;
    if (r.on_logits) r.on_logits(position, logits);
    LogitsChange change;
    if (r.change_logits) change = [&](std::span<float> row) { r.change_logits(position, row); };
    return take_token(r, r.sampler->sample(logits, change));
  }
  held_.push_back(request);
  r.held.assign(logits.begin(), logits.end());
}

// Rows come in the order of the prompt.
void Engine::show_prompt_row(Request& r, std::span<const float> logits) {
  if (!r.done()) r.on_prompt_logits(r.prompt_rows_shown++, logits);
}

// A preempted request is computed again, and the running step may hold a second row of the same logits. That
// row is taken first, and ignored while these are held: otherwise a token would be sampled from each.
void Engine::sample_held() {
  for (const auto& request : std::exchange(held_, {})) {
    if (!request->done() && !request->draft.is_free()) {
      held_.push_back(request);
      continue;
    }
    std::vector<float> logits = std::exchange(request->held, {});
    sample(request, logits);
  }
}

// The step has nothing else to do. It does not wait for long, as others may be submitted meanwhile.
void Engine::wait_for_others() const {
  if (scheduler_->fetches()) return store_->wait();
  const Request* const waits = held_.empty() ? scheduler_->awaiting_mask() : held_.front().get();
  if (waits != nullptr) waits->sampler->wait_until(Clock::now() + kMaskWait);
}

Engine::Clock::duration Engine::drafting_time() const {
  const std::chrono::duration<double> seconds(speculator_ ? speculator_->drafting_seconds() : 0);
  return std::chrono::duration_cast<Clock::duration>(seconds);
}

// A draft goes on from tokens that are known, and the rows behind it are known once it is verified. A device
// that goes on by itself needs neither.
bool Engine::must_take_first() {
  if (running_.wanted.empty()) return false;
  if (running_.begun) return !scheduler_->can_continue();
  if (running_.kind == StepKind::kDrafted) return true;
  return (speculator_ && speculator_->follows_steps()) || scheduler_->would_draft();
}

Status Engine::fail(const Status& status) {
  scheduler_->fail_all(status);
  scheduler_->collect();  // nobody copies a page any more
  forget_steps();
  return status;
}

// The rows of prompts that count are those of the step whose end the engine has just waited for. A step with
// few of them takes nearly as long as one with many, so the rate is the best one of the last steps.
void Engine::measure_prompts(const ScheduledBatch& step, Clock::time_point begun_at) {
  constexpr double kFade = 0.01;
  const int rows = step.batch.rows() - static_cast<int>(step.batch.logit_rows.size());
  const bool on_device = !step.batch.sampling.empty();
  const int done = std::exchange(prompt_rows_in_flight_, on_device ? rows : 0) + (on_device ? 0 : rows);
  const double seconds = seconds_since(begun_at);
  if (done > 0 && seconds > 0) prompt_rate_ = std::max(done / seconds, (1 - kFade) * prompt_rate_);
}

Status Engine::run_step() {
  const Clock::time_point begun_at = Clock::now();
  sample_held();
  scheduler_->collect();  // requests cancelled since the last step are not computed any further
  if (running_.wanted.empty()) since_ = Clock::now();
  const bool taken_first = must_take_first();
  if (taken_first) {
    if (const Status status = take_sampled(); !status.ok()) return fail(status);
    scheduler_->collect();
  }
  ScheduledBatch next = scheduler_->next_batch(backend_->can_sample(), prompt_rate_);
  if (taken_first) since_ += drafting_time();
  const bool on_device = !next.batch.sampling.empty();
  logits_.resize(on_device ? 0 : next.wanted.size() * static_cast<size_t>(config_.vocab));
  Status launched;
  if (next.batch.rows() > 0) {
    const bool alone = !on_device && running_.wanted.empty();
    if (alone) since_ = Clock::now();
    const Clock::time_point begin = Clock::now();
    launched = forward(*backend_, config_, next.batch, logits_);
    if (!on_device) device_seconds_ += seconds_since(begin);
    // A host waits for every step: what rows take does not depend on whose they are.
    if (alone) measure(next.account, sampled_rows(next), StepKind::kPlain);
  } else if (running_.wanted.empty()) {
    wait_for_others();
  }
  std::optional<BegunDraft> begun;
  if (on_device && launched.ok()) begun = scheduler_->draft_ahead(next);
  Status status = take_sampled();
  if (!launched.ok()) status = std::move(launched);
  if (status.ok()) status = edit_rows(next);
  if (!status.ok()) return fail(status);
  if (store_) scheduler_->begin_fetches();
  measure_prompts(next, begun_at);
  if (on_device) {
    running_.rows = rows_of(next);
    running_.wanted = std::move(next.wanted);
    running_.kind = next.drafts ? StepKind::kDrafted : taken_first ? StepKind::kStopped : StepKind::kPlain;
    running_.begun = std::move(begun), running_.account = next.account;
    running_.measured_rows = sampled_rows(next);
  } else {
    take_logits(next);
  }
  scheduler_->collect();
  return status;
}

void Engine::forget_steps() {
  static_cast<void>(backend_->forget_steps());  // every request has its error already
  forgets_ = false;
}

// Rows count as computed once they are scheduled: after an exception nobody knows which of them are. Where
// memory has run out, there may be none for what follows either.
Status Engine::step() {
  static const Status ended(StatusCode::kInternal, "a step was ended by an exception");
  try {
    const Clock::time_point begin = Clock::now();
    if (forgets_) forget_steps();
    Status status = run_step();
    ++steps_;
    step_seconds_ += seconds_since(begin);
    update_stats();
    return status;
  } catch (...) {
    running_ = {};
    held_.clear();
    forgets_ = true;
    scheduler_->fail_all(ended);
    try {
      scheduler_->collect();
    } catch (...) {
      // The cache's watcher threw as well, or there is no memory. The next step collects what is left, and
      // the first exception is the one to report.
    }
    forget_steps();  // the next step does it where this throws
    update_stats();
    throw;
  }
}

Status Engine::keep(KvTiers tiers, uint64_t fingerprint) {
  if (!tiers.options.any()) return {};
  RETURN_IF_ERROR(check_kv_store(tiers.options, options_.prefix_cache));
  ASSIGN_OR_RETURN(store_, KvStore::open(std::move(tiers), *backend_, config_, layout_, fingerprint));
  scheduler_->keep(store_.get());
  return {};
}

void Engine::speculate(std::unique_ptr<Drafter> drafter, int draft_tokens) {
  speculator_ = std::make_unique<Speculator>(std::move(drafter), draft_tokens);
  scheduler_->speculate(speculator_.get());
}

void Engine::update_stats() {
  EngineStats stats = scheduler_->stats();
  stats.generated_tokens = generated_;
  stats.steps = steps_;
  stats.step_seconds = step_seconds_;
  stats.host_seconds = step_seconds_ - device_seconds_;
  const StepCaptures captures = backend_->captures();
  stats.captures = static_cast<uint64_t>(captures.made);
  stats.failed_captures = static_cast<uint64_t>(captures.failed);
  if (speculator_) stats.speculation = speculator_->stats();
  const std::lock_guard lock(stats_->mutex);
  stats_->stats = stats;
}

EngineStats Engine::stats() const {
  EngineStats stats;
  {
    const std::lock_guard lock(stats_->mutex);
    stats = stats_->stats;
  }
  if (!store_) return stats;
  const KvStoreStats store = store_->stats();
  stats.store.host = store.host, stats.store.disk = store.disk;
  return stats;
}

Status Engine::run_to_end() {
  while (!idle()) RETURN_IF_ERROR(step());
  return {};
}

}  // namespace moesaic
