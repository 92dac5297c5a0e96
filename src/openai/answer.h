// Chat, completions and responses have this in common: a body becomes a PreparedRequest, and its generations'
// tokens become an Answer, either one JSON document or server-sent events. No sockets or threads here.
#pragma once

#include <chrono>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "moesaic/engine.h"
#include "openai/api_error.h"
#include "openai/grammar_cache.h"
#include "openai/known_fields.h"
#include "openai/response_store.h"
#include "openai/sse.h"

namespace moesaic::openai {

// The part of a prompt that is read, and the time since it began.
struct ReadPrompt {
  PromptProgress progress;
  double milliseconds = 0;
};

// llama.cpp's prompt_progress.
inline text::OrderedJson progress_json(const ReadPrompt& prompt) {
  return {{"total", prompt.progress.tokens},
          {"cache", prompt.progress.cached},
          {"processed", prompt.progress.read},
          {"time_ms", static_cast<int64_t>(prompt.milliseconds)}};
}

// One token of a generation with its text, or the generation's end.
struct AnswerEvent {
  int choice = 0;  // index of the generation in PreparedRequest::requests
  std::optional<SampledToken> token;
  std::vector<SampledToken> prompt;  // its next tokens, with SamplingParams::prompt_logprobs
  std::vector<TextPiece> pieces;
  std::optional<ReadPrompt> read;       // with PreparedRequest::progress
  std::optional<PromptProgress> found;  // the prompt's counts, in a generation's first event
  std::optional<Outcome> end;
  std::chrono::steady_clock::time_point time = std::chrono::steady_clock::now();  // it was made then
  std::chrono::steady_clock::time_point begun{};  // the generation left the queue then; in its first event
};

// Token counts of a request.
struct Usage {
  int prompt_tokens = 0, generated_tokens = 0, reasoning_tokens = 0, cached_tokens = 0,
      cache_write_tokens = 0;
};
// The usage of a request of one generation.
inline Usage usage_of(const Outcome& outcome, int reasoning_tokens) {
  return {.prompt_tokens = outcome.prompt_tokens,
          .generated_tokens = outcome.generated_tokens,
          .reasoning_tokens = reasoning_tokens,
          .cached_tokens = outcome.cached_tokens,
          .cache_write_tokens = outcome.cache_write_tokens};
}
inline text::OrderedJson usage_json(const Usage& u) {
  return {{"prompt_tokens", u.prompt_tokens},
          {"completion_tokens", u.generated_tokens},
          {"total_tokens", u.prompt_tokens + u.generated_tokens},
          {"prompt_tokens_details",
           {{"cached_tokens", u.cached_tokens}, {"cache_write_tokens", u.cache_write_tokens}}}};
}

class Answer {
 public:
  virtual ~Answer() = default;

  // Takes an event. Where the answer is streamed, the server-sent events that it means are appended to sse.
  virtual void add(const AnswerEvent& event, std::string* sse) = 0;
  // Every generation has ended.
  virtual bool complete() const = 0;
  // The last events of a complete stream.
  virtual void finish(std::string& sse) = 0;
  // The JSON of a complete answer that is not streamed.
  virtual std::string whole() = 0;
  // The last events of a stream that ends with an error.
  virtual void fail(const ApiError& error, std::string& sse) {
    append_event(sse, error_json(error));
    sse += kDone;
  }
  virtual Usage usage() const = 0;
  // The type of a stream, and the text that keeps it alive while nothing comes (empty: none can).
  virtual std::string_view content_type() const { return "text/event-stream; charset=utf-8"; }
  virtual std::string_view heartbeat() const { return kHeartbeat; }
};

// A request's body, parsed and checked: what the engine is to generate, and what writes the answer.
struct PreparedRequest {
  std::vector<GenerationRequest> requests;
  std::unique_ptr<Answer> answer;
  bool stream = false;
  bool progress = false;  // a stream tells how much of the prompts is read
  size_t kept_bytes = 0;  // bytes of the request that the answer keeps
  UnknownFields unknown;  // the request's
  Refusal failure;        // for streams: an error to be sent as an event, because clients expect it there
};

using PreparedRequestOrError = std::variant<PreparedRequest, ApiError>;

// The server's part in preparing a request.
struct Service {
  const Model& model;
  std::string name;                  // the model's name, as /v1/models gives it
  std::string today;                 // 2025-06-28
  std::time_t started = 0;           // when the server began
  int max_choices = 16;              // n
  int max_answers = 128;             // n, times prompts
  int reasoning_budget = -1;         // for requests that name none (SamplingParams)
  bool strict_fields = false;        // unknown fields are an error
  GrammarCache* grammars = nullptr;  // null: nothing is kept
  // False: a schema that is not in `grammars` is not compiled; the error then has needs_compilation.
  bool may_compile = true;
  ResponseStore* responses = nullptr;  // null: none are stored
  // Bytes of a stored response that are read; the error of a longer one has needs_bytes.
  size_t most_stored = SIZE_MAX;
  std::string larger_context = "start the server with a larger --ctx";  // the way to get one
  std::string client = {};      // who may read what this request stores
  std::string holder = {};      // in whose share of the store it is
  std::stop_token cancel = {};  // ends long work early; the result is then meaningless
};

}  // namespace moesaic::openai
