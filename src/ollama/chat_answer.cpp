#include "ollama/chat_answer.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <utility>

#include "ollama/error.h"
#include "openai/argument_style.h"
#include "openai/sampling_fields.h"
#include "openai/sse.h"

namespace moesaic::ollama {
namespace {

using openai::Json;

int64_t nanoseconds(std::chrono::steady_clock::duration time) {
  return std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
}

// RFC 3339, in UTC.
std::string now() {
  const auto time = std::chrono::system_clock::now();
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()) %
                      std::chrono::seconds(1);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:06}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(time)),
                     micros.count());
}

std::string line_of(std::string_view json) { return openai::one_line(json) + "\n"; }

}  // namespace

ChatAnswer::ChatAnswer(const openai::Service& service, Options options)
    : name_(service.name), options_(std::move(options)), model_(service.model), special_(service.model) {}

ChatAnswer::Part ChatAnswer::take(const openai::AnswerEvent& event) {
  Part part;
  reasoning_tokens_.add(event, special_, options_.functions);
  if (options_.logprobs) waiting_.add(model_, special_, event);
  for (const TextPiece& piece : event.pieces) {
    const std::vector<SampledToken> shown = waiting_.shown_by(piece.text);
    const std::string function = options_.functions.name_of(piece.recipient);
    if (!function.empty()) {
      part.calls.push_back(
          {.id = openai::object_call_id("call_", piece), .name = function, .arguments = piece.text});
    } else if (piece.channel == "analysis") {
      if (options_.thinking) part.thinking += thinking_.add(piece);
    } else {
      part.content += content_.add(piece);
      for (const SampledToken& token : shown) part.logprobs.push_back(openai::chat_logprob(model_, token));
    }
  }
  return part;
}

Json ChatAnswer::line(const Part& part, bool done, size_t first_call) const {
  Json json = {{"model", name_}, {"created_at", now()}};
  if (options_.shape == Shape::kGenerate) {
    json["response"] = part.content;
    if (!part.thinking.empty()) json["thinking"] = part.thinking;
  } else {
    Json message = {{"role", "assistant"}, {"content", part.content}};
    if (!part.thinking.empty()) message["thinking"] = part.thinking;
    for (size_t i = 0; i < part.calls.size(); ++i)
      message["tool_calls"].push_back({{"id", part.calls[i].id},
                                       {"function",
                                        {{"index", first_call + i},
                                         {"name", part.calls[i].name},
                                         {"arguments", openai::arguments_object(part.calls[i].arguments)}}}});
    json["message"] = std::move(message);
  }
  if (!part.logprobs.empty()) json["logprobs"] = part.logprobs;
  json["done"] = done;
  if (done) add_end(json);
  return json;
}

void ChatAnswer::set_loaded() { loaded_ = ended_ = true; }

const char* ChatAnswer::done_reason() const {
  if (loaded_) return "load";
  return outcome_.finish == FinishReason::kLength ? "length" : "stop";
}

// Without the time in the queue.
ChatAnswer::Clock::duration ChatAnswer::read_time() const { return first_ - std::max(left_queue_, begun_); }

// The first token comes from the step that reads the prompt's end. It counts as long as the others on
// average, and at least as a token of the prompt.
ChatAnswer::Clock::duration ChatAnswer::eval_time() const {
  const Clock::duration read = read_time(), others = end_ - first_;
  const int computed = std::max(1, outcome_.prompt_tokens - outcome_.cached_tokens);
  const int more = std::max(1, outcome_.generated_tokens - 1);
  return others + std::min(read, std::max(read / computed, others / more));
}

void ChatAnswer::add_end(Json& json) const {
  json["done_reason"] = done_reason();
  if (loaded_) return;
  json["total_duration"] = nanoseconds(end_ - begun_);
  json["load_duration"] = 0;
  json["prompt_eval_count"] = outcome_.prompt_tokens;
  json["prompt_eval_duration"] = nanoseconds(read_time() + (end_ - first_) - eval_time());
  json["eval_count"] = outcome_.generated_tokens;
  json["eval_duration"] = nanoseconds(eval_time());
}

void ChatAnswer::add(const openai::AnswerEvent& event, std::string* lines) {
  left_queue_ = std::max(left_queue_, event.begun);
  if (event.token && first_ == Clock::time_point()) first_ = event.time;
  Part part = take(event);
  if (event.end) {
    outcome_ = *event.end;
    ended_ = true;
    end_ = event.time;
    if (first_ == Clock::time_point()) first_ = end_;
  }
  const bool shows = !part.content.empty() || !part.thinking.empty() || !part.calls.empty();
  if (lines != nullptr) {
    if (shows) *lines += line_of(openai::dump(line(part, false, calls_told_)));
    calls_told_ += part.calls.size();
    return;
  }
  all_.content += part.content, all_.thinking += part.thinking;
  for (Call& call : part.calls) all_.calls.push_back(std::move(call));
  for (const Json& token : part.logprobs) logprobs_.push_back(token);
}

void ChatAnswer::finish(std::string& lines) { lines += line_of(openai::dump(line({}, true))); }

std::string ChatAnswer::whole() {
  if (!logprobs_.empty()) all_.logprobs = logprobs_.json();
  return openai::dump(line(all_, true));
}

void ChatAnswer::fail(const openai::ApiError& error, std::string& lines) {
  lines += line_of(ollama::error_json(error));
}

openai::Usage ChatAnswer::usage() const { return openai::usage_of(outcome_, reasoning_tokens_.count()); }

}  // namespace moesaic::ollama
