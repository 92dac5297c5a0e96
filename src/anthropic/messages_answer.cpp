#include "anthropic/messages_answer.h"

#include <algorithm>
#include <utility>

#include "anthropic/error.h"
#include "openai/argument_style.h"
#include "openai/sampling_fields.h"
#include "openai/sealed_reasoning.h"
#include "openai/sse.h"

namespace moesaic::anthropic {
namespace {

using openai::Json;

// Clients send it back with the thinking. It is not looked at.
constexpr const char* kSignature = "not-signed";

void emit(const char* type, const Json& data, std::string& sse) {
  Json event = {{"type", type}};
  event.update(data);
  openai::append_event(sse, openai::dump(event), type);
}

}  // namespace

MessagesAnswer::MessagesAnswer(const openai::Service& service, Options options)
    : id_(openai::new_id("msg_")),
      model_(service.name),
      options_(std::move(options)),
      special_(service.model) {
  outcome_.prompt_tokens = options_.prompt_tokens;
}

MessagesAnswer::Kind MessagesAnswer::kind_of(const TextPiece& piece) const {
  if (!options_.functions.name_of(piece.recipient).empty()) return Kind::kCall;
  return piece.channel == "analysis" ? Kind::kThinking : Kind::kText;
}

std::string MessagesAnswer::signature_of(const Block& block) const {
  return options_.sealed ? openai::seal_reasoning(block.text) : kSignature;
}

// empty: as a stream's block begins.
Json MessagesAnswer::block_json(const Block& block, bool empty) const {
  const std::string text = empty ? "" : block.text;
  switch (block.kind) {
    case Kind::kThinking:
      return {{"type", "thinking"},
              {"thinking", options_.sealed ? "" : text},
              {"signature", empty ? "" : signature_of(block)}};
    case Kind::kCall:
      return {{"type", "tool_use"},
              {"id", block.id},
              {"name", block.name},
              {"input", openai::arguments_object(text)}};
    default:
      return {{"type", "text"}, {"text", text}, {"citations", nullptr}};
  }
}

void MessagesAnswer::begin(std::string& sse) {
  begun_ = true;
  Json message = message_json();
  message["content"] = Json::array();
  emit("message_start", {{"message", message}}, sse);
}

void MessagesAnswer::open(const TextPiece& piece, std::string* sse) {
  Block block{.kind = kind_of(piece)};
  if (block.kind == Kind::kCall) {
    block.id = openai::object_call_id("toolu_", piece);
    block.name = options_.functions.name_of(piece.recipient);
  }
  blocks_.push_back(std::move(block));
  open_ = true;
  if (sse == nullptr) return;
  emit("content_block_start",
       {{"index", blocks_.size() - 1}, {"content_block", block_json(blocks_.back(), true)}}, *sse);
}

void MessagesAnswer::close(std::string* sse) {
  if (!std::exchange(open_, false) || sse == nullptr) return;
  const size_t index = blocks_.size() - 1;
  if (blocks_.back().kind == Kind::kThinking)
    emit("content_block_delta",
         {{"index", index},
          {"delta", {{"type", "signature_delta"}, {"signature", signature_of(blocks_.back())}}}},
         *sse);
  emit("content_block_stop", {{"index", index}}, *sse);
}

void MessagesAnswer::take(const TextPiece& piece, std::string* sse) {
  const Kind kind = kind_of(piece);
  if (kind == Kind::kThinking && !options_.thinking && !options_.sealed) return;
  if (piece.text.empty() && kind != Kind::kCall) return;
  if (!open_ || kind == Kind::kCall || blocks_.back().kind != kind) {
    close(sse);
    open(piece, sse);
  }
  Block& block = blocks_.back();
  std::string text = kind == Kind::kCall ? piece.text : block.messages.add(piece);
  block.text += text;
  if (kind == Kind::kCall) text = openai::dump(openai::arguments_object(text));
  if (sse == nullptr || (kind == Kind::kThinking && options_.sealed)) return;
  constexpr const char* kTypes[] = {"thinking_delta", "text_delta", "input_json_delta"};
  constexpr const char* kMembers[] = {"thinking", "text", "partial_json"};
  const auto which = static_cast<int>(kind);
  const auto emit_delta = [&](const std::string& part) {
    emit("content_block_delta",
         {{"index", blocks_.size() - 1}, {"delta", {{"type", kTypes[which]}, {kMembers[which], part}}}},
         *sse);
  };
  if (kind != Kind::kCall) return emit_delta(text);
  for (const std::string& part : openai::arguments_in_parts(text)) emit_delta(part);
}

void MessagesAnswer::add(const openai::AnswerEvent& event, std::string* sse) {
  if (event.found && !ended_)
    outcome_.cached_tokens = event.found->cached, outcome_.cache_write_tokens = event.found->kept;
  if (sse != nullptr && !begun_) begin(*sse);
  if (options_.max_tokens > 0) {
    for (const TextPiece& piece : event.pieces) take(piece, sse);
    reasoning_tokens_.add(event, special_, options_.functions);
  }
  if (!event.end) return;
  close(sse);
  outcome_ = *event.end;
  if (options_.max_tokens == 0) outcome_.finish = FinishReason::kLength, outcome_.generated_tokens = 0;
  ended_ = true;
}

Json MessagesAnswer::stop_reason() const {
  if (!ended_) return {};
  if (outcome_.finish == FinishReason::kLength)
    return outcome_.generated_tokens < options_.max_tokens ? "model_context_window_exceeded" : "max_tokens";
  if (!outcome_.stop_string.empty()) return "stop_sequence";
  const auto is_call = [](const Block& block) { return block.kind == Kind::kCall; };
  return std::any_of(blocks_.begin(), blocks_.end(), is_call) ? "tool_use" : "end_turn";
}

Json MessagesAnswer::stop_sequence() const {
  return outcome_.stop_string.empty() ? Json() : Json(outcome_.stop_string);
}

void MessagesAnswer::finish(std::string& sse) {
  emit("message_delta",
       {{"delta", {{"stop_reason", stop_reason()}, {"stop_sequence", stop_sequence()}}},
        {"usage", usage_json()}},
       sse);
  emit("message_stop", Json::object(), sse);
}

void MessagesAnswer::fail(const openai::ApiError& error, std::string& sse) {
  openai::append_event(sse, anthropic::error_json(error), "error");
}

Json MessagesAnswer::message_json() const {
  Json json = {{"id", id_}, {"type", "message"}, {"role", "assistant"}, {"model", model_}};
  json["content"] = Json::array();
  for (const Block& block : blocks_) json["content"].push_back(block_json(block, false));
  json["stop_reason"] = stop_reason();
  json["stop_sequence"] = stop_sequence();
  json["usage"] = usage_json();
  return json;
}

std::string MessagesAnswer::whole() { return openai::dump(message_json()); }

openai::Usage MessagesAnswer::usage() const { return openai::usage_of(outcome_, reasoning_tokens_.count()); }

// The three kinds of input tokens add up to the prompt.
Json MessagesAnswer::usage_json() const {
  const openai::Usage u = usage();
  return {{"input_tokens", u.prompt_tokens - u.cached_tokens - u.cache_write_tokens},
          {"cache_creation_input_tokens", u.cache_write_tokens},
          {"cache_read_input_tokens", u.cached_tokens},
          {"output_tokens", u.generated_tokens},
          {"output_tokens_details", {{"thinking_tokens", u.reasoning_tokens}}}};
}

}  // namespace moesaic::anthropic
