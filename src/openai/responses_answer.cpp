#include "openai/responses_answer.h"

#include <ctime>
#include <utility>

#include "openai/sampling_fields.h"
#include "openai/sealed_reasoning.h"
#include "openai/sse.h"

namespace moesaic::openai {

ResponsesAnswer::ResponsesAnswer(const Service& service, Json echo, Options options)
    : model_(service.model),
      id_(new_id("resp_")),
      name_(service.name),
      created_(std::time(nullptr)),
      echo_(std::move(echo)),
      options_(std::move(options)),
      special_(service.model) {}

// The phase of a message's text.
const char* ResponsesAnswer::phase_of(const TextPiece& piece) {
  return piece.channel == "commentary" ? "commentary" : "final_answer";
}

ResponsesAnswer::Kind ResponsesAnswer::kind_of(const TextPiece& piece) const {
  if (!options_.functions.name_of(piece.recipient).empty()) return Kind::kCall;
  return piece.channel == "analysis" ? Kind::kReasoning : Kind::kMessage;
}

Json ResponsesAnswer::part_json(const Item& item) {
  if (item.kind == Kind::kReasoning) return {{"type", "reasoning_text"}, {"text", item.text}};
  return {{"type", "output_text"},
          {"text", item.text},
          {"annotations", Json::array()},
          {"logprobs", item.logprobs.json()}};
}

Json ResponsesAnswer::call_json(const Item& item) {
  Json json = {{"type", "function_call"},    {"id", item.id},          {"call_id", item.call_id},
               {"name", item.function.name}, {"arguments", item.text}, {"status", item.status}};
  if (!item.function.space.empty()) json["namespace"] = item.function.space;
  return json;
}

Json ResponsesAnswer::item_json(const Item& item) const {
  if (item.kind == Kind::kCall) return call_json(item);
  Json content = item.text.empty() ? Json::array() : Json::array({part_json(item)});
  if (item.kind == Kind::kReasoning) {
    Json json = {{"type", "reasoning"},
                 {"id", item.id},
                 {"summary", Json::array()},
                 {"content", std::move(content)},
                 {"status", item.status}};
    if (options_.encrypted_reasoning) json["encrypted_content"] = seal_reasoning(item.text);
    return json;
  }
  return {{"type", "message"},   {"id", item.id},         {"role", "assistant"},
          {"phase", item.phase}, {"status", item.status}, {"content", std::move(content)}};
}

void ResponsesAnswer::emit(const char* type, const Json& data, std::string& sse) {
  Json event = {{"type", type}, {"sequence_number", sequence_++}};
  event.update(data);
  append_event(sse, dump(event), type);
}

void ResponsesAnswer::emit_item(const char* type, const Json& data, std::string* sse) {
  if (sse == nullptr) return;
  Json event = {{"item_id", items_.back().id}, {"output_index", items_.size() - 1}};
  if (items_.back().kind != Kind::kCall) event["content_index"] = 0;
  event.update(data);
  emit(type, event, *sse);
}

void ResponsesAnswer::begin(std::string& sse) {
  begun_ = true;
  emit("response.created", {{"response", response("in_progress")}}, sse);
  emit("response.in_progress", {{"response", response("in_progress")}}, sse);
}

void ResponsesAnswer::open(const TextPiece& piece, std::string* sse) {
  const Kind kind = kind_of(piece);
  constexpr const char* kPrefixes[] = {"rs_", "msg_", "fc_"};
  Item item{.kind = kind,
            .id = new_id(kPrefixes[static_cast<int>(kind)]),
            .call_id = {},
            .text = {},
            .phase = {},
            .messages = {},
            .function = {}};
  if (kind == Kind::kCall) {
    item.call_id = call_id("call_", piece);
    item.function = options_.functions.function(options_.functions.name_of(piece.recipient));
  }
  item.phase = phase_of(piece);
  items_.push_back(std::move(item));
  open_ = true;
  if (sse == nullptr) return;
  emit("response.output_item.added",
       {{"output_index", items_.size() - 1}, {"item", item_json(items_.back())}}, *sse);
  if (kind != Kind::kCall)
    emit_item("response.content_part.added", {{"part", part_json(items_.back())}}, sse);
}

void ResponsesAnswer::close(const char* status, std::string* sse) {
  if (!open_) return;
  open_ = false;
  items_.back().status = status;
  if (sse == nullptr) return;
  const Item& item = items_.back();
  if (item.kind == Kind::kCall) {
    emit_item("response.function_call_arguments.done",
              {{"name", item.function.name}, {"arguments", item.text}}, sse);
  } else {
    const bool reasoning = item.kind == Kind::kReasoning;
    Json done = {{"text", item.text}};
    if (!reasoning) done["logprobs"] = item.logprobs.json();
    emit_item(reasoning ? "response.reasoning_text.done" : "response.output_text.done", done, sse);
    emit_item("response.content_part.done", {{"part", part_json(item)}}, sse);
  }
  emit("response.output_item.done", {{"output_index", items_.size() - 1}, {"item", item_json(item)}}, *sse);
}

Json ResponsesAnswer::add_logprobs(const std::vector<SampledToken>& shown) {
  Json added = Json::array();
  for (const SampledToken& token : shown) added.push_back(spliced(dump(chat_logprob(model_, token))));
  for (const Json& one : added) items_.back().logprobs.push_back(one);
  return added;
}

bool ResponsesAnswer::continues(const TextPiece& piece) const {
  const Kind kind = kind_of(piece);
  return open_ && kind != Kind::kCall && items_.back().kind == kind && items_.back().phase == phase_of(piece);
}

void ResponsesAnswer::take(const TextPiece& piece, std::string* sse) {
  const Kind kind = kind_of(piece);
  const std::vector<SampledToken> shown = waiting_.shown_by(piece.text);  // also where nobody sees it
  if (kind == Kind::kReasoning && !options_.reasoning) return close("completed", sse);
  if (!continues(piece)) {
    close("completed", sse);
    open(piece, sse);
  }
  said_all_ = false;
  Item& item = items_.back();
  const std::string text = kind == Kind::kCall ? arguments_text(piece.text) : item.messages.add(piece);
  if (text.empty()) return;
  item.text += text;
  Json logprobs = kind == Kind::kMessage ? add_logprobs(shown) : Json();
  constexpr const char* kDeltas[] = {"response.reasoning_text.delta", "response.output_text.delta",
                                     "response.function_call_arguments.delta"};
  const auto emit_delta = [&](const std::string& part) {
    Json delta = {{"delta", part}};
    if (kind == Kind::kMessage) delta["logprobs"] = std::move(logprobs);
    emit_item(kDeltas[static_cast<int>(kind)], delta, sse);
  };
  if (kind != Kind::kCall) return emit_delta(text);
  for (const std::string& part : arguments_in_parts(text)) emit_delta(part);
  close("completed", sse);
}

void ResponsesAnswer::add(const AnswerEvent& event, std::string* sse) {
  if (sse != nullptr && !begun_) begin(*sse);
  if (options_.logprobs) waiting_.add(model_, special_, event);
  for (const TextPiece& piece : event.pieces) take(piece, sse);
  reasoning_tokens_.add(event, special_, options_.functions);
  if (event.token && special_.ends_message(event.token->token)) said_all_ = true;
  if (!event.end) return;
  close(event.end->finish == FinishReason::kLength && !said_all_ ? "incomplete" : "completed", sse);
  outcome_ = *event.end;
  ended_ = true;
}

const char* ResponsesAnswer::final_status() const {
  return outcome_.finish == FinishReason::kLength ? "incomplete" : "completed";
}

void ResponsesAnswer::finish(std::string& sse) {
  const bool cut = outcome_.finish == FinishReason::kLength;
  const Json complete = response(final_status());
  emit(cut ? "response.incomplete" : "response.completed", {{"response", complete}}, sse);
  keep(complete);
}

std::string ResponsesAnswer::whole() {
  const Json complete = response(final_status());
  keep(complete);
  return dump(complete);
}

void ResponsesAnswer::keep(const Json& complete) {
  if (options_.store == nullptr) return;
  std::string items = std::exchange(options_.input, {});
  items.pop_back();
  std::vector<StoredItem> outputs;
  for (const Json& item : complete["output"]) {
    if (items.size() > 1) items += ',';
    const std::string text = dump(item);
    outputs.push_back({.id = item.value("id", ""), .begin = items.size(), .size = text.size()});
    items += text;
  }
  items += ']';
  options_.store->keep(id_, {.owner = options_.owner,
                             .holder = options_.holder,
                             .response = dump(complete),
                             .items = std::move(items),
                             .outputs = std::move(outputs)});
}

void ResponsesAnswer::fail(const ApiError& error, std::string& sse) {
  if (!begun_) begin(sse);
  if (open_) items_.back().status = "incomplete";
  Json failed = response("failed");
  failed["error"] = {{"code", error.code.empty() ? "server_error" : error.code}, {"message", error.message}};
  emit("response.failed", {{"response", failed}}, sse);
}

Json ResponsesAnswer::response(const char* status) const {
  Json json = {
      {"id", id_},           {"object", "response"}, {"created_at", created_},        {"status", status},
      {"background", false}, {"error", nullptr},     {"incomplete_details", nullptr}, {"model", name_}};
  if (ended_ && outcome_.finish == FinishReason::kLength)
    json["incomplete_details"] = {{"reason", "max_output_tokens"}};
  json["output"] = Json::array();
  for (const Item& item : items_) json["output"].push_back(item_json(item));
  json.update(echo_);
  json["usage"] = ended_ ? usage_json() : Json();
  return json;
}

Usage ResponsesAnswer::usage() const { return usage_of(outcome_, reasoning_tokens_.count()); }

Json ResponsesAnswer::usage_json() const {
  const Usage u = usage();
  return {{"input_tokens", u.prompt_tokens},
          {"input_tokens_details",
           {{"cached_tokens", u.cached_tokens}, {"cache_write_tokens", u.cache_write_tokens}}},
          {"output_tokens", u.generated_tokens},
          {"output_tokens_details", {{"reasoning_tokens", u.reasoning_tokens}}},
          {"total_tokens", u.prompt_tokens + u.generated_tokens}};
}

}  // namespace moesaic::openai
