#include "server/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "openai/sse.h"
#include "server/client.h"
#include "server/event_queue.h"
#include "server/handlers.h"
#include "server/keys.h"

namespace moesaic::server {
namespace {

using openai::Answer;
using openai::ApiError;
using Events = EventQueue::Events;

// One request's generations in flight. Cancels them when it goes.
class Generating {
 public:
  Generating(HttpExchange& exchange, App& app, openai::PreparedRequest& prepared, Clock::time_point deadline)
      : exchange_(exchange),
        app_(app),
        answer_(*prepared.answer),
        queue_(std::make_shared<EventQueue>(exchange.executor(), prepared.stream && prepared.progress)),
        deadline_(deadline),
        on_cut_(app.cut.get_token(), Cut{queue_.get()}) {}
  Generating(const Generating&) = delete;
  Generating& operator=(const Generating&) = delete;
  ~Generating() { exchange_.abandon(); }

  bool submit(std::vector<GenerationRequest> requests) {
    return app_.engine.submit(std::move(requests), queue_, exchange_.gone(), exchange_.record().arrived);
  }
  asio::awaitable<void> whole();
  asio::awaitable<void> stream();
  asio::awaitable<void> stream_failure(const ApiError& error);

 private:
  // Adds what comes within the time of a heartbeat to the answer; false: error_ says why there is no more.
  asio::awaitable<bool> next(std::string* sse);
  Clock::time_point heartbeat_after(Clock::time_point since) const;
  bool add(const openai::AnswerEvent& event, std::string* sse);
  openai::Refusal failure(const Outcome& outcome) const;
  asio::awaitable<void> stream_rest(std::string sse, HeldBytes& behind);
  asio::awaitable<bool> send_part(std::string& sse, size_t& sent);

  HttpExchange& exchange_;
  App& app_;
  Answer& answer_;
  std::shared_ptr<EventQueue> queue_;
  Clock::time_point deadline_;
  ApiError error_;

  // Ends a generation as if the engine had cancelled it.
  struct Cut {
    EventQueue* queue;
    void operator()() const { queue->cancel(); }
  };
  std::stop_callback<Cut> on_cut_;
};

// The rest of an event of which the client may have a part: of server-sent ones, or a line.
std::string first_event(std::string_view sse) {
  size_t end = sse.find("\n\n");
  end = end == std::string_view::npos ? sse.find('\n') + 1 : end + 2;
  return std::string(sse.substr(0, end));
}

// The error that ended a generation before its time; nothing where it ended as it should.
openai::Refusal Generating::failure(const Outcome& outcome) const {
  if (outcome.finish == FinishReason::kError) return openai::api_error(outcome.error);
  if (outcome.finish != FinishReason::kCancelled) return {};
  if (app_.cut.stop_requested()) return shutting_down();
  if (queue_->dropped()) return busy();
  return ApiError{
      .http = 503, .message = "the generation was cancelled", .type = "server_error", .code = "cancelled"};
}

bool Generating::add(const openai::AnswerEvent& event, std::string* sse) {
  if (event.token && exchange_.record().first == Clock::time_point()) exchange_.record().first = Clock::now();
  if (event.end) {
    if (const auto failed = failure(*event.end)) {
      error_ = *failed;
      return false;
    }
  }
  answer_.add(event, sse);
  return true;
}

// Returns the time at which a stream that has been silent since then sends a comment.
Clock::time_point Generating::heartbeat_after(Clock::time_point since) const {
  const auto pause = app_.options.limits.heartbeat;
  return pause.count() > 0 ? since + pause : Clock::time_point::max();
}

asio::awaitable<bool> Generating::next(std::string* sse) {
  const auto now = Clock::now();
  const bool more = sse != nullptr && !sse->empty();  // is to be sent before anything else comes
  const auto until = more ? now : std::min(heartbeat_after(now), deadline_);
  const Events events = co_await queue_->take(until);
  for (const openai::AnswerEvent& event : events) {
    if (!add(event, sse)) co_return false;
  }
  if (events.empty() && sse != nullptr && !more) *sse += answer_.heartbeat();
  if (!events.empty() || Clock::now() < deadline_) co_return true;
  error_ = timed_out();
  co_return false;
}

asio::awaitable<void> Generating::whole() {
  while (!answer_.complete()) {
    const bool more = co_await next(nullptr);
    if (more) continue;
    exchange_.record().usage = answer_.usage();
    if (!exchange_.gone().stop_requested()) co_await send_error(exchange_, error_);
    co_return;
  }
  exchange_.record().usage = answer_.usage();
  HttpAnswer answer{.body = answer_.whole()};
  co_await exchange_.send(std::move(answer));
}

// Until the first token an error still has a status of its own. A prompt that takes longer than a heartbeat
// is answered by the stream's beginning.
asio::awaitable<void> Generating::stream() {
  std::string sse;
  HeldBytes behind(app_.bodies, client_of(exchange_.request(), app_.options));
  bool began = co_await next(&sse);
  if (began && !behind.hold_unread(sse.size())) {
    error_ = bodies_full();
    began = false;
  }
  if (began) {
    co_await stream_rest(std::move(sse), behind);
  } else if (!exchange_.gone().stop_requested()) {
    co_await send_error(exchange_, error_);
  }
  exchange_.record().usage = answer_.usage();
}

// Sends so much that the client must have it within a time. sent: bytes of sse that it has already.
asio::awaitable<bool> Generating::send_part(std::string& sse, size_t& sent) {
  std::string part = sse.substr(sent, kLeastRead);
  sent += part.size();
  if (2 * sent >= sse.size()) sse.erase(0, std::exchange(sent, 0));
  const bool reached = co_await exchange_.send_events(std::move(part));
  co_return reached;
}

// While there is no room for what the client is behind, the next events stay in the queue. A client that does
// not catch up soon gets no more of them.
asio::awaitable<void> Generating::stream_rest(std::string sse, HeldBytes& behind) {
  constexpr auto kCatchUp = std::chrono::seconds(2);
  bool reached = co_await exchange_.begin_events(answer_.content_type());
  bool going = true, counted = true;
  size_t sent = 0;
  auto last = Clock::now();
  std::optional<Clock::time_point> full_since;
  while (reached && going && !(answer_.complete() && counted)) {
    // Tokens that show nothing yet, as those of a call, are silence too.
    if (sse.empty() && Clock::now() >= heartbeat_after(last)) sse += answer_.heartbeat();
    if (!sse.empty()) {
      reached = co_await send_part(sse, sent);
      last = Clock::now();
    }
    counted = behind.hold_unread(sse.size() - sent);
    if (counted) {
      full_since.reset();
      if (!reached || answer_.complete()) continue;
      going = co_await next(&sse);
      counted = false;
    } else if (!full_since) {
      full_since = Clock::now();
    } else if (Clock::now() >= *full_since + kCatchUp) {
      exchange_.record().cut_off = true;
      error_ = bodies_full();
      going = false;
      sse = first_event(std::string_view(sse).substr(sent)), sent = 0;
    }
  }
  if (!reached || exchange_.gone().stop_requested()) co_return;
  sse.erase(0, std::exchange(sent, 0));
  if (going) {
    answer_.finish(sse);
  } else {
    answer_.fail(error_, sse);
  }
  while (reached && !sse.empty()) {
    reached = co_await send_part(sse, sent);
    behind.hold_unread(sse.size() - sent);
  }
  if (reached) co_await exchange_.end_events();
}

asio::awaitable<void> Generating::stream_failure(const ApiError& error) {
  std::string sse;
  answer_.fail(error, sse);
  bool reached = co_await exchange_.begin_events(answer_.content_type());
  if (reached) reached = co_await exchange_.send_events(std::move(sse));
  if (reached) co_await exchange_.end_events();
}

// The parts of a schema that the compiler left out, for a header: the first ones, in printable ASCII.
std::vector<std::string> notes_for_header(const AnswerGrammar& grammar) {
  constexpr size_t kMost = 8, kMostBytes = 120;
  std::vector<std::string> shown;
  for (std::string note : grammar.notes()) {
    note.resize(std::min(note.size(), kMostBytes));
    std::replace_if(
        note.begin(), note.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
    if (std::find(shown.begin(), shown.end(), note) != shown.end()) continue;
    const bool full = shown.size() == kMost;
    shown.push_back(full ? "and more" : std::move(note));
    if (full) break;
  }
  return shown;
}

// Reports what of a schema is not enforced: to the client, and each note once to the log.
void report_schema_notes(HttpExchange& exchange, App& app, const AnswerGrammar& grammar) {
  const auto notes = notes_for_header(grammar);
  std::string& shown = exchange.record().schema_notes;
  for (const std::string& note : notes) {
    shown += (shown.empty() ? "" : "; ") + note;
    if (app.options.log_requests && app.schema_notes.is_new(note)) app.log.event("schema_note", note);
  }
}

// With several keys, what a key's requests have cached is found by that key's only: by the key itself, since
// what was kept on disk outlives its place in the list.
std::vector<GenerationRequest> of_client(std::vector<GenerationRequest> requests, const HttpRequest& from,
                                         const ServerOptions& options) {
  const auto key = key_of(from.authorization, options.api_keys);
  const bool apart = key && options.api_keys.size() > 1 && !options.shared_prefix_cache;
  for (GenerationRequest& request : requests) {
    request.client = client_of(from, options);
    if (apart) request.cache_salt.insert(0, options.api_keys[*key] + '\n');
  }
  return requests;
}

// Why the engine took no request: it ended while the request was read, or it has as many as it takes.
ApiError not_submitted(App& app) {
  if (auto refusal = unavailable(app)) return *std::move(refusal);
  ++app.metrics.refused_busy;
  return busy();
}

}  // namespace

void report_ignored_fields(HttpExchange& exchange, App& app, const openai::UnknownFields& unknown) {
  exchange.record().ignored_fields = unknown.header();
  if (!app.options.log_requests) return;
  for (const auto& [path, nearest] : unknown.named) {
    if (app.ignored_fields.is_new(path))
      app.log.event("ignored_field",
                    nearest.empty() ? path : fmt::format("{}, nearest known: {}", path, nearest));
  }
}

asio::awaitable<void> generate(HttpExchange& exchange, App& app, PrepareRequest prepare_request) {
  const auto deadline = deadline_of(app);
  openai::PreparedRequestOrError made = co_await prepare(exchange, app, prepare_request, deadline);
  if (exchange.gone().stop_requested()) co_return;
  if (const auto* error = std::get_if<ApiError>(&made)) {
    co_await send_error(exchange, *error);
    co_return;
  }
  auto& prepared = std::get<openai::PreparedRequest>(made);
  report_ignored_fields(exchange, app, prepared.unknown);
  if (!prepared.requests.empty()) report_schema_notes(exchange, app, prepared.requests.front().grammar);
  HeldBytes kept(app.bodies, client_of(exchange.request(), app.options));
  Generating generating(exchange, app, prepared, deadline);
  if (!kept.hold(prepared.kept_bytes)) {
    const ApiError error = bodies_full();
    co_await send_error(exchange, error);
  } else if (prepared.failure) {
    co_await generating.stream_failure(*prepared.failure);
  } else if (!generating.submit(of_client(std::move(prepared.requests), exchange.request(), app.options))) {
    const ApiError error = not_submitted(app);
    co_await send_error(exchange, error);
  } else if (prepared.stream) {
    co_await generating.stream();
  } else {
    co_await generating.whole();
  }
}

}  // namespace moesaic::server
