#include "server/engine_thread.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/seconds.h"

namespace moesaic::server {

EngineThread::EngineThread(Open open, int max_waiting, Metrics& metrics)
    : open_(std::move(open)), metrics_(metrics), admission_(max_waiting) {}

EngineThread::~EngineThread() { stop(); }

void EngineThread::start(std::function<void()> on_state, std::function<void(int)> on_loading) {
  on_state_ = std::move(on_state);
  on_loading_ = std::move(on_loading);
  thread_ = std::thread([this] { run(); });
}

void EngineThread::ask_to_stop() {
  cancel_loading();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
}

void EngineThread::stop() {
  ask_to_stop();
  if (thread_.joinable()) thread_.join();
  // Queues go before the executors of their connections: those of tickets that the model has, too.
  inbox_.clear();
  live_.clear();
  touched_.clear();
  opened_ = nullptr;
  model_.reset();
}

bool EngineThread::stop_within(std::chrono::milliseconds time) {
  ask_to_stop();
  std::unique_lock lock(mutex_);
  const bool loads = thread_.joinable() && !open_ended_.wait_for(lock, time, [this] { return load_ended_; });
  lock.unlock();
  if (!loads) stop();
  return !loads;
}

Status EngineThread::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

Gauges EngineThread::gauges() const {
  const Model* opened = model();
  const std::lock_guard lock(mutex_);
  return {.engine = opened != nullptr ? opened->stats() : EngineStats(),
          .inbox = static_cast<int>(inbox_.size())};
}

bool EngineThread::submit(std::vector<GenerationRequest> requests, const std::shared_ptr<EventQueue>& queue,
                          const std::stop_token& cancel, Clock::time_point arrived) {
  const auto count = static_cast<int>(requests.size());
  if (count == 0) return true;  // an answer that is complete as it is
  std::vector<std::shared_ptr<Submission>> dropped;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return false;
    const std::string client = requests.front().client;
    const auto submission = std::make_shared<Submission>(client, ++last_id_, queue, cancel);
    const Admission::Decision decision = admission_.admit(client, submission->id, count);
    if (!decision.admitted) return false;
    for (const uint64_t id : decision.dropped) {
      if (auto gone = submissions_.extract(id)) dropped.push_back(gone.mapped().lock());
    }
    submissions_.emplace(submission->id, submission);
    for (int i = 0; i < count; ++i) {
      inbox_.push_back(std::make_shared<Ticket>(Ticket{.request = std::move(requests[i]),
                                                       .submission = submission,
                                                       .choice = i,
                                                       .arrived = arrived,
                                                       .queued = Clock::now(),
                                                       .last = arrived}));
    }
  }
  wake_.notify_all();
  for (const auto& submission : dropped) {
    if (submission == nullptr) continue;  // it is ending by itself
    submission->queue->drop();
    submission->stop.request_stop();
    ++metrics_.refused_busy;
  }
  return true;
}

void EngineThread::set_state(State state) {
  state_.store(state, std::memory_order_release);
  state_.notify_all();
}

bool EngineThread::report_loading(int64_t done, int64_t total) {
  const int percent = total > 0 ? static_cast<int>(100 * done / total) : 0;
  loaded_percent_ = percent;
  if (on_loading_) on_loading_(percent);
  return !loading_cancelled_;
}

bool EngineThread::open() {
  auto opened = [&]() -> Result<Model> {
    try {
      return open_([this](int64_t done, int64_t total) { return report_loading(done, total); });
    } catch (const std::exception& e) {
      return error(StatusCode::kInternal, "{}", e.what());
    }
  }();
  {
    const std::lock_guard lock(mutex_);
    load_ended_ = true;
  }
  open_ended_.notify_all();
  const bool ok = opened.ok();
  if (opened.status().code() == StatusCode::kCancelled && loading_cancelled_) {
    set_state(State::kCancelled);
  } else if (ok) {
    model_.emplace(std::move(opened).value());
    {
      const std::lock_guard lock(mutex_);
      admission_.enlarge(model_->info().max_batch);
    }
    opened_.store(&*model_, std::memory_order_release);
    set_state(State::kReady);
    on_state_();
  } else {
    fail(opened.status());
  }
  return ok;
}

// Waits while there is nothing to do. False: the server is going down.
bool EngineThread::take_inbox(std::deque<TicketPtr>& taken) {
  std::unique_lock lock(mutex_);
  if (model_->idle()) wake_.wait(lock, [&] { return stopping_ || !inbox_.empty(); });
  live_.insert(inbox_.begin(), inbox_.end());
  taken = std::exchange(inbox_, {});
  return !stopping_;
}

// Until the server goes down, or what ended it. Nothing is thrown out of it.
Status EngineThread::work() {
  try {
    for (std::deque<TicketPtr> taken; take_inbox(taken);) {
      for (const TicketPtr& ticket : taken) admit(ticket);
      if (!model_->idle()) RETURN_IF_ERROR(model_->step());
      hand_out();
    }
    return {};
  } catch (const std::exception& e) {
    return error(StatusCode::kInternal, "{}", e.what());
  } catch (...) {
    return error(StatusCode::kInternal, "an exception of unknown type");
  }
}

void EngineThread::run() noexcept {
  try {
    if (!open()) return;
    const Status status = work();
    if (!status.ok()) fail(status);
  } catch (const std::exception&) {  // not even memory to say so
    set_state(State::kFailed);
  }
}

// Ends every generation with the error, also after an exception, where the model called no on_end. Admits
// nothing any more.
void EngineThread::fail(const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    failure_ = status;
    stopping_ = true;
    live_.insert(inbox_.begin(), inbox_.end());
    inbox_.clear();
    set_state(State::kFailed);
  }
  const Outcome outcome{.finish = FinishReason::kError, .error = status};
  for (const TicketPtr& ticket : live_) {
    if (!ticket->ended) on_end(ticket, outcome);
    ticket->event().end = ticket->event().end.value_or(outcome);
    touched_.push_back(ticket);
  }
  hand_out();
  on_state_();
}

void EngineThread::admit(const TicketPtr& ticket) {
  Callbacks callbacks{.on_token = [this, ticket](const SampledToken& token) { on_token(ticket, token); },
                      .on_text =
                          [this, ticket](const TextPiece& piece) {
                            ticket->event().pieces.push_back(piece);
                            touch(ticket);
                          },
                      .on_end = [this, ticket](const Outcome& outcome) { on_end(ticket, outcome); }};
  if (ticket->request.sampling.prompt_logprobs >= 0)
    callbacks.on_prompt_token = [this, ticket](const SampledToken& token) {
      ticket->event().prompt.push_back(token);
      touch(ticket);
    };
  callbacks.on_begin = [this, ticket] { on_begin(ticket); };
  callbacks.on_prompt = [this, ticket](const PromptProgress& progress) { on_prompt(ticket, progress); };
  const Status status =
      model_->submit(std::move(ticket->request), std::move(callbacks), ticket->submission->stop.token());
  if (!status.ok()) on_end(ticket, {.finish = FinishReason::kError, .error = status});
}

openai::AnswerEvent& EngineThread::Ticket::event() {
  if (events.empty()) events.push_back({.choice = choice});
  return events.back();
}

void EngineThread::touch(const TicketPtr& ticket) {
  if (touched_.empty() || touched_.back() != ticket) touched_.push_back(ticket);
}

void EngineThread::on_begin(const TicketPtr& ticket) {
  ticket->event().begun = ticket->begun = Clock::now();
  metrics_.queue_time.observe(seconds_between(ticket->queued, ticket->begun));
  const std::lock_guard lock(mutex_);
  admission_.begun(ticket->submission->client, ticket->submission->id);
  submissions_.erase(ticket->submission->id);
}

void EngineThread::on_prompt(const TicketPtr& ticket, const PromptProgress& progress) {
  constexpr double kMilliseconds = 1e3;
  ticket->event().found = progress;
  if (!ticket->submission->queue->wants_progress()) return;  // it goes with the first token
  ticket->event().read =
      openai::ReadPrompt{.progress = progress, .milliseconds = kMilliseconds * seconds_since(ticket->begun)};
  touch(ticket);
}

void EngineThread::on_token(const TicketPtr& ticket, const SampledToken& token) {
  const auto now = Clock::now();
  const double waited = seconds_between(ticket->last, now);
  (ticket->tokens++ == 0 ? metrics_.time_to_first_token : metrics_.inter_token).observe(waited);
  ticket->last = now;
  ticket->events.push_back({.choice = ticket->choice, .token = token});
  touch(ticket);
}

void EngineThread::on_end(const TicketPtr& ticket, const Outcome& outcome) {
  ticket->event().end = outcome;
  ticket->ended = true;
  touch(ticket);
  {
    const std::lock_guard lock(mutex_);
    admission_.ended(ticket->submission->client, ticket->submission->id);
    submissions_.erase(ticket->submission->id);
  }
  metrics_.prompt_length.observe(outcome.prompt_tokens);
  metrics_.generation_length.observe(outcome.generated_tokens);
  metrics_.end_to_end.observe(seconds_since(ticket->arrived));
  metrics_.recoveries += outcome.recoveries;
  ++metrics_.finished[static_cast<int>(outcome.finish)];
}

// Once a step: a client is woken once for it, whatever the step gave.
void EngineThread::hand_out() {
  for (const TicketPtr& ticket : touched_) {
    if (ticket->events.empty()) continue;
    ticket->submission->queue->push(std::exchange(ticket->events, {}));
    if (ticket->ended) live_.erase(ticket);
  }
  touched_.clear();
}

}  // namespace moesaic::server
