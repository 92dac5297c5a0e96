#include "openai/chat_answer.h"

#include <fmt/format.h>

#include <ctime>
#include <utility>

#include "openai/logprobs.h"
#include "openai/sampling_fields.h"
#include "openai/sse.h"

namespace moesaic::openai {
namespace {

Json null_if_empty(const std::string& text) { return text.empty() ? Json() : Json(text); }

}  // namespace

ChatAnswer::ChatAnswer(const Service& service, const Options& options)
    : model_(service.model),
      options_(options),
      id_(new_id("chatcmpl-")),
      name_(service.name),
      created_(std::time(nullptr)),
      special_(service.model),
      choices_(options.choices),
      open_(options.choices) {
  for (Choice& choice : choices_) choice.outcome.prompt_tokens = options.prompt_tokens;
  head_ = fmt::format(R"({{"id":{},"object":"chat.completion.chunk","created":{},"model":{},"choices":)",
                      dump(id_), created_, dump(name_));
}

void ChatAnswer::take_call(const TextPiece& piece, const std::string& name, Choice& choice, Delta& delta) {
  const size_t index = choice.calls.size();
  choice.calls.push_back(
      {.id = call_id("call_", piece), .name = name, .arguments = arguments_text(piece.text)});
  const Call& call = choice.calls.back();
  delta.calls.push_back({{"index", index},
                         {"id", call.id},
                         {"type", "function"},
                         {"function", {{"name", call.name}, {"arguments", ""}}}});
  for (const std::string& part : arguments_in_parts(call.arguments))
    delta.calls.push_back({{"index", index}, {"function", {{"arguments", part}}}});
}

ChatAnswer::Delta ChatAnswer::take(const AnswerEvent& event, Choice& choice) {
  Delta delta;
  if (options_.logprobs) choice.waiting.add(model_, special_, event);
  for (const TextPiece& piece : event.pieces) {
    const std::vector<SampledToken> shown = choice.waiting.shown_by(piece.text);
    const std::string function = options_.functions.name_of(piece.recipient);
    if (!function.empty()) {
      take_call(piece, function, choice, delta);
    } else if (piece.channel == "analysis") {
      delta.reasoning += choice.reasoning_text.add(piece);
    } else {
      delta.content += choice.content_text.add(piece);
      for (const SampledToken& token : shown) delta.logprobs.push_back(chat_logprob(model_, token));
    }
  }
  choice.reasoning_tokens.add(event, special_, options_.functions);
  if (!options_.reasoning) delta.reasoning.clear();
  return delta;
}

void ChatAnswer::write(int index, const Json& delta, const Json& logprobs, const char* finish,
                       std::string& sse) {
  Json choice = {{"index", index},
                 {"delta", delta},
                 {"logprobs", logprobs},
                 {"finish_reason", finish == nullptr ? Json() : Json(finish)}};
  if (options_.token_ids) choice["token_ids"] = std::exchange(choices_[index].tokens, {});
  append_event(sse, fmt::format("{}[{}]{}", head_, dump(choice), tail()));
}

std::string ChatAnswer::tail() const {
  return options_.continuous_usage ? fmt::format(R"(,"usage":{}}})", dump(usage_json())) : "}";
}

// The role, and with token_ids the prompt.
void ChatAnswer::begin(int index, std::string& sse) {
  const Json choice = {{"index", index},
                       {"delta", {{"role", "assistant"}, {"content", ""}}},
                       {"logprobs", nullptr},
                       {"finish_reason", nullptr}};
  const std::string prompt =
      options_.token_ids ? fmt::format(R"(,"prompt_token_ids":{})", dump(options_.prompt)) : "";
  append_event(sse, fmt::format("{}[{}]{}{}", head_, dump(choice), prompt, tail()));
  choices_[index].started = true;
}

// Before the role, by which clients measure the time to the first token.
void ChatAnswer::write_progress(const AnswerEvent& event, std::string& sse) const {
  const Json choice = {{"index", event.choice}, {"delta", Json::object()}, {"finish_reason", nullptr}};
  append_event(sse, fmt::format(R"({}[{}],"prompt_progress":{}}})", head_, dump(choice),
                                dump(progress_json(*event.read))));
}

void ChatAnswer::write(int index, const Delta& d, std::string& sse) {
  Json delta = Json::object();
  if (!d.content.empty()) delta["content"] = d.content;
  if (!d.reasoning.empty()) delta["reasoning_content"] = delta["reasoning"] = d.reasoning;
  const Json logprobs = d.logprobs.empty() ? Json() : Json{{"content", d.logprobs}};
  if (!delta.empty()) write(index, delta, logprobs, nullptr, sse);
  for (const Json& call : d.calls) write(index, {{"tool_calls", Json::array({call})}}, {}, nullptr, sse);
}

const char* ChatAnswer::finish_reason(const Choice& choice) {
  if (choice.outcome.finish == FinishReason::kLength) return "length";
  return choice.calls.empty() ? "stop" : "tool_calls";
}

// The counts of the end take the place of those until then.
void ChatAnswer::take_counts(const AnswerEvent& event, Choice& choice) {
  if (event.token) ++choice.outcome.generated_tokens;
  if (event.read) choice.outcome.cached_tokens = event.read->progress.cached;
  if (!event.end) return;
  choice.outcome = *event.end;
  --open_;
}

void ChatAnswer::add(const AnswerEvent& event, std::string* sse) {
  Choice& choice = choices_[event.choice];
  const Delta delta = take(event, choice);
  if (event.token && options_.token_ids) choice.tokens.push_back(event.token->token);
  take_counts(event, choice);
  if (sse == nullptr) {
    choice.content += delta.content, choice.reasoning += delta.reasoning;
    for (const Json& token : delta.logprobs) choice.logprobs.push_back(token);
    return;
  }
  if (event.read) write_progress(event, *sse);
  if (!event.token && !event.end && delta.empty()) return;
  if (!choice.started) begin(event.choice, *sse);
  write(event.choice, delta, *sse);
  if (event.end) write(event.choice, Json::object(), {}, finish_reason(choice), *sse);
}

void ChatAnswer::finish(std::string& sse) {
  if (options_.include_usage)
    append_event(sse, fmt::format(R"({}[],"usage":{}}})", head_, dump(usage_json())));
  sse += kDone;
}

Json ChatAnswer::message_of(const Choice& choice) const {
  Json message = {{"role", "assistant"}, {"content", choice.content}, {"refusal", nullptr}};
  if (!choice.calls.empty()) message["content"] = null_if_empty(choice.content);
  if (!choice.reasoning.empty()) message["reasoning_content"] = message["reasoning"] = choice.reasoning;
  for (const Call& call : choice.calls) {
    message["tool_calls"].push_back({{"id", call.id},
                                     {"type", "function"},
                                     {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  return message;
}

std::string ChatAnswer::whole() {
  Json choices = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Choice& choice = choices_[i];
    choices.push_back({{"index", i},
                       {"message", message_of(choice)},
                       {"logprobs", options_.logprobs ? Json{{"content", choice.logprobs.json()}} : Json()},
                       {"finish_reason", finish_reason(choice)}});
    if (options_.token_ids) choices.back()["token_ids"] = choice.tokens;
  }
  Json json = {{"id", id_},      {"object", "chat.completion"},   {"created", created_},
               {"model", name_}, {"choices", std::move(choices)}, {"usage", usage_json()}};
  if (options_.token_ids) json["prompt_token_ids"] = options_.prompt;
  return dump(json);
}

Usage ChatAnswer::usage() const {
  Usage sum = usage_of(choices_[0].outcome, 0);  // the prompt counts once
  sum.generated_tokens = 0;
  for (const Choice& choice : choices_) {
    sum.generated_tokens += choice.outcome.generated_tokens;
    sum.reasoning_tokens += choice.reasoning_tokens.count();
  }
  return sum;
}

Json ChatAnswer::usage_json() const {
  const Usage sum = usage();
  Json json = openai::usage_json(sum);
  json["completion_tokens_details"] = {{"reasoning_tokens", sum.reasoning_tokens}};
  return json;
}

}  // namespace moesaic::openai
