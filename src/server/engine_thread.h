// The one thread that uses the Model: it opens it, takes what was submitted, steps, and hands out what each
// step gave.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include "base/linked_stop.h"
#include "moesaic/engine.h"
#include "server/admission.h"
#include "server/event_queue.h"
#include "server/metrics.h"

namespace moesaic::server {

class EngineThread {
 public:
  enum class State { kLoading, kReady, kFailed, kCancelled };
  // The same as OpenOptions::progress.
  using Progress = std::function<bool(int64_t done, int64_t total)>;
  using Open = std::function<Result<Model>(const Progress& progress)>;

  // max_waiting: generations that may wait beyond those of a batch, of all clients
  // (GenerationRequest::client).
  EngineThread(Open open, int max_waiting, Metrics& metrics);
  ~EngineThread();  // as stop()
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  // Both are called from the engine's thread: on_state when the model is loaded or something has failed,
  // on_loading as it is loaded.
  void start(std::function<void()> on_state, std::function<void(int percent)> on_loading = {});
  // Loading ends at the next report of its progress, in State::kCancelled. Nothing once the model is loaded.
  void cancel_loading() { loading_cancelled_ = true; }
  int loaded_percent() const { return loaded_percent_; }
  // Joins after the step in flight. What is left gets no more events; its queues and the model are let go.
  void stop();
  // The same, but a model that is being loaded is waited for no longer than that. False: it still is, and the
  // thread runs on.
  bool stop_within(std::chrono::milliseconds time);

  State state() const { return state_.load(std::memory_order_acquire); }
  Status failure() const;  // with kFailed
  // Blocks while the model is loading.
  void wait_until_loaded() const { state_.wait(State::kLoading, std::memory_order_acquire); }
  // For its thread-safe methods; null before kReady and after stop(). It stays when the engine fails, which
  // may happen while a caller uses it.
  const Model* model() const { return opened_.load(std::memory_order_acquire); }

  // Queues generations of a request that arrived then, whose events go to `queue`; AnswerEvent::choice is the
  // index in `requests`. False: there is no room for all of them, and none was queued. Each one's last event
  // has `end`, also after an error. Requests of clients that have more of the room may have to go for it:
  // EventQueue::drop().
  bool submit(std::vector<GenerationRequest> requests, const std::shared_ptr<EventQueue>& queue,
              const std::stop_token& cancel, Clock::time_point arrived);

  Gauges gauges() const;

 private:
  // The generations that were submitted together.
  struct Submission {
    Submission(std::string owner, uint64_t number, std::shared_ptr<EventQueue> events, std::stop_token cancel)
        : client(std::move(owner)), id(number), queue(std::move(events)), stop(std::move(cancel)) {}
    std::string client;
    uint64_t id;
    std::shared_ptr<EventQueue> queue;
    LinkedStop stop;  // by the caller, or because it has to go
  };
  // One generation on its way.
  struct Ticket {
    GenerationRequest request;
    std::shared_ptr<Submission> submission;
    int choice = 0;
    Clock::time_point arrived;              // the request
    Clock::time_point queued, begun, last;  // last: the last token, or the request
    EventQueue::Events events;              // this step's; the last one may still grow
    openai::AnswerEvent& event();
    int tokens = 0;
    bool ended = false;
  };
  using TicketPtr = std::shared_ptr<Ticket>;

  void run() noexcept;
  bool open();
  bool report_loading(int64_t done, int64_t total);
  void ask_to_stop();
  Status work();
  bool take_inbox(std::deque<TicketPtr>& taken);
  void admit(const TicketPtr& ticket);
  void on_begin(const TicketPtr& ticket);
  void on_prompt(const TicketPtr& ticket, const PromptProgress& progress);
  void on_token(const TicketPtr& ticket, const SampledToken& token);
  void on_end(const TicketPtr& ticket, const Outcome& outcome);
  void touch(const TicketPtr& ticket);
  void hand_out();
  void fail(const Status& status);
  void set_state(State state);

  Open open_;
  std::function<void()> on_state_;
  std::function<void(int)> on_loading_;
  Metrics& metrics_;
  std::atomic<State> state_ = State::kLoading;
  std::atomic<bool> loading_cancelled_ = false;
  std::atomic<int> loaded_percent_ = 0;
  std::optional<Model> model_;
  std::atomic<const Model*> opened_ = nullptr;  // &*model_
  std::vector<TicketPtr> touched_;              // with events to hand out
  std::unordered_set<TicketPtr> live_;          // taken from the inbox, their end not handed out yet

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<TicketPtr> inbox_;
  Admission admission_;
  std::unordered_map<uint64_t, std::weak_ptr<Submission>> submissions_;  // those that may have to go
  uint64_t last_id_ = 0;
  bool stopping_ = false;
  bool load_ended_ = false;  // well or not
  std::condition_variable open_ended_;
  Status failure_;
  std::thread thread_;
};

}  // namespace moesaic::server
