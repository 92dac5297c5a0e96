#include "openai/responses_request.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "openai/chat_generation.h"
#include "openai/generation_fields.h"
#include "openai/input_settings.h"
#include "openai/known_fields.h"
#include "openai/responses_answer.h"
#include "openai/responses_input.h"
#include "openai/sampling_fields.h"
#include "openai/tool_choice.h"
#include "text/harmony.h"

namespace moesaic::openai {
namespace {

constexpr size_t kMaxIncludes = 64;

struct ResponsesRequest : ChatTask {
  Json format = {{"type", "text"}};
  Result<Conversation> conversation = Conversation();
  ResponsesAnswer::Options options;
  bool stream = false, store = true;
};

void read_text_format(Fields& fields, ResponsesRequest& r) {
  fields.inside("text", [&](Fields& text) {
    const Json* format = text.find("format");
    if (format != nullptr) r.format = *format;
    read_format(fields, "text", format, r.form);
    r.verbosity = read_verbosity(text);
  });
}

// Reads the parts of answers that must be asked for. The other names are of tools that are not here.
void read_include(Fields& fields, ResponsesRequest& r) {
  std::vector<std::string> names;
  fields.strings("include", names, kMaxIncludes);
  int top = 0;
  fields.integer("top_logprobs", top, 0, kMaxTopLogprobs);
  const auto asks = [&](const char* name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  r.options.encrypted_reasoning = asks("reasoning.encrypted_content");
  r.options.logprobs = top > 0 || asks("message.output_text.logprobs");
  if (r.options.logprobs) r.sampling.top_logprobs = top;
}

// first: as in responses_input.h.
ResponsesRequest read_responses(Fields& fields, size_t first, const Service& service) {
  ResponsesRequest r;
  read_model(fields, service);
  read_sampling(fields, service.model, r.sampling);
  read_max_tokens(fields, {"max_output_tokens", "n_predict", "max_new_tokens"}, r.sampling);
  r.tools = read_all_tools(fields);
  read_parallel_calls(fields, r.tools);
  r.thinking = read_thinking(fields);
  read_text_format(fields, r);
  read_updates(fields, r.thinking, r.form, r.format);
  read_other_formats(fields, r.form);
  read_include(fields, r);
  std::string instructions;
  fields.read("instructions", instructions);
  r.cache_prompt = read_cache_prompt(fields);
  r.cache_salt = read_cache_salt(fields);
  fields.read("stream", r.stream);
  fields.read("store", r.store);
  r.store = r.store && service.responses != nullptr;
  Conversation conversation = new_conversation(r.tools, r.form, r.thinking, service);
  const bool both = !r.verbosity.empty() && !instructions.empty();
  conversation.instructions = r.verbosity + (both ? "\n\n" : "") + instructions;
  r.conversation = read_input(fields, r.tools, first, std::move(conversation));
  r.options.functions = Callable(r.tools);
  r.options.reasoning = r.thinking.shown;
  return r;
}

// The input as items.
Json items_of(const Json& root) {
  const auto input = root.find("input");
  if (input == root.end()) return Json::array();
  if (!input->is_string()) return *input;
  return Json::array({{{"type", "message"}, {"role", "user"}, {"content", *input}}});
}

// The stored part of a request's input.
struct StoredInput {
  std::shared_ptr<const StoredResponse> previous;  // null: none
  std::vector<std::optional<FoundItem>> items;     // for each item of the input that is an item_reference
};

// The items that led to the previous response, and its own, come before the input.
Refusal find_previous(const Json& root, const Service& service, StoredInput& found) {
  const auto given = root.find("previous_response_id");
  if (given == root.end() || given->is_null() || *given == Json("")) return {};
  const auto refused = [](std::string message, const char* code) {
    return ApiError{.message = std::move(message), .param = "previous_response_id", .code = code};
  };
  if (!given->is_string()) return refused("previous_response_id: must be a string", "");
  if (service.responses == nullptr)
    return refused("previous_response_id: nothing is stored here: send the conversation's items as input",
                   "");
  const std::string id = given->get<std::string>();
  found.previous = service.responses->find(id, service.client);
  if (!found.previous)
    return refused(
        fmt::format("Previous response with id '{}' not found: it was not stored, or is stored no longer.",
                    id.substr(0, 80)),
        "previous_response_not_found");
  return {};
}

// Finds the items that stand in the input as references; those that are not stored are refused when it is
// read. One may be named many times, so the sum of their bytes is bounded.
Refusal find_references(const Json& root, const Service& service, StoredInput& found) {
  const Json& input = text::member(root, "input");
  if (!input.is_array() || service.responses == nullptr) return {};
  size_t bytes = 0;
  for (size_t i = 0; i < input.size(); ++i) {
    if (!is_reference(input[i])) continue;
    const auto item = service.responses->find_item(text::string_or(input[i], "id", ""), service.client);
    if (!item) continue;
    bytes += item->json.size();
    if (bytes > service.responses->largest())
      return ApiError{.message = fmt::format("input: item {}: the items that item_references name have more "
                                             "than {} bytes: send fewer of them",
                                             i, service.responses->largest()),
                      .param = "input"};
    found.items.resize(input.size());
    found.items[i] = item;
  }
  return {};
}

// Puts what the input refers to into it; `first` items then come before the request's own.
Refusal add_stored(Json& root, size_t& first, const Service& service) {
  StoredInput found;
  if (Refusal refusal = find_previous(root, service, found)) return refusal;
  if (Refusal refusal = find_references(root, service, found)) return refusal;
  size_t bytes = found.previous ? found.previous->items.size() : 0;
  for (const auto& item : found.items) bytes += item ? item->json.size() : 0;
  if (bytes == 0) return {};
  if (bytes > service.most_stored) return ApiError{.needs_bytes = bytes};
  Json own = items_of(root);
  if (!own.is_array()) return {};  // refused as any other wrong input
  Json items = found.previous ? text::exact_json(found.previous->items) : Json::array();
  first = items.size();
  for (size_t i = 0; i < own.size(); ++i) {
    const bool stored = i < found.items.size() && found.items[i];
    items.push_back(stored ? text::exact_json(found.items[i]->json) : std::move(own[i]));
  }
  root["input"] = std::move(items);
  return {};
}

// The fields of its request that a response repeats. They are kept as text: a client chooses how long they
// are, and each of several events has them.
Json echo_of(const Json& root, const ResponsesRequest& r) {
  const auto given = [&](const char* key, const Json& otherwise) {
    const auto at = root.find(key);
    return spliced(dump(at == root.end() || at->is_null() ? otherwise : *at));
  };
  const auto metadata = root.find("metadata");
  const bool has_metadata = metadata != root.end() && metadata->is_object();
  return {{"instructions", given("instructions", {})},
          {"max_output_tokens", given("max_output_tokens", {})},
          {"metadata", spliced(has_metadata ? dump(*metadata) : "{}")},
          {"parallel_tool_calls", given("parallel_tool_calls", true)},
          {"previous_response_id", given("previous_response_id", {})},
          {"reasoning", {{"effort", effort_name(r.thinking.effort)}, {"summary", nullptr}}},
          {"store", r.store},
          {"temperature", r.sampling.temperature},
          {"text", {{"format", spliced(dump(r.format))}}},
          {"tool_choice", given("tool_choice", "auto")},
          {"tools", given("tools", Json::array())},
          {"top_logprobs", std::max(r.sampling.top_logprobs, 0)},
          {"top_p", r.sampling.top_p},
          {"truncation", "disabled"}};
}

// Asks that the response be kept behind the items that led to it. Those that would not be are not held until
// then.
void store_answer(ResponsesAnswer::Options& options, std::string items, const Service& service) {
  if (items.size() > service.responses->largest()) return;
  options.store = service.responses;
  options.owner = service.client;
  options.holder = service.holder;
  options.input = std::move(items);
}

}  // namespace

PreparedRequestOrError prepare_response(std::string_view body, const Service& service) {
  Result<Json> parsed = parse_object(body);
  if (!parsed.ok()) return api_error(parsed.status());
  Json& root = parsed.value();
  Fields fields(root);
  UnknownFields unknown = check_fields(root, responses_fields(), service.strict_fields, fields);
  size_t first = 0;
  if (Refusal refusal = add_stored(root, first, service)) return *refusal;
  ResponsesRequest r = read_responses(fields, first, service);
  if (!fields.ok()) return *fields.refusal();
  auto made = chat_generation(r, r.conversation, "input", fields, service);
  PreparedRequest prepared{.requests = {}, .answer = nullptr, .stream = r.stream};
  prepared.unknown = std::move(unknown);
  Json echo = echo_of(root, r);
  if (r.store) store_answer(r.options, dump(items_of(root)), service);
  prepared.kept_bytes = dump(echo).size() + r.options.input.size();
  prepared.answer = std::make_unique<ResponsesAnswer>(service, std::move(echo), std::move(r.options));
  if (auto* error = std::get_if<ApiError>(&made)) {
    // Clients of the stream look for this one among its events, to shorten the conversation.
    if (!r.stream || error->code != "context_length_exceeded") return *error;
    prepared.failure = *error;
    return prepared;
  }
  prepared.requests.push_back(std::get<GenerationRequest>(std::move(made)));
  return prepared;
}

TokenAnswerOrError count_input(std::string_view body, const Service& service) {
  Result<Json> parsed = parse_object(body);
  if (!parsed.ok()) return api_error(parsed.status());
  Json& root = parsed.value();
  Fields fields(root);
  UnknownFields unknown = check_fields(root, responses_fields(), service.strict_fields, fields);
  size_t first = 0;
  if (Refusal refusal = add_stored(root, first, service)) return *refusal;
  const ResponsesRequest r = read_responses(fields, first, service);
  if (!fields.ok()) return *fields.refusal();
  return count_prompt(r.conversation, "input", service, std::move(unknown),
                      {{"object", "response.input_tokens"}});
}

}  // namespace moesaic::openai
