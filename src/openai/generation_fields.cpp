#include "openai/generation_fields.h"

#include <fmt/format.h>

#include <array>

#include "base/error.h"
#include "openai/sse.h"

namespace moesaic::openai {

Result<Json> parse_object(std::string_view body) {
  ASSIGN_OR_RETURN(Json root, text::parse_ordered_json(body, "the request's body"));
  if (!root.is_object()) return invalid("the request's body is not a JSON object");
  return root;
}

void read_model(Fields& fields, const Service& service) {
  std::string model = service.name;
  fields.read("model", model);
  if (model != service.name && !model.empty())
    fields.refuse({.http = 404,
                   .message = fmt::format("the model '{}' is not served here; '{}' is", model.substr(0, 200),
                                          service.name),
                   .param = "model",
                   .code = "model_not_found"});
}

void read_effort(Fields& fields, const char* key, std::string& effort) {
  constexpr std::array<std::array<const char*, 2>, 6> kEfforts = {{{"none", "low"},
                                                                   {"minimal", "low"},
                                                                   {"low", "low"},
                                                                   {"medium", "medium"},
                                                                   {"high", "high"},
                                                                   {"xhigh", "high"}}};
  std::string given = effort;
  fields.read(key, given);
  for (const auto& [name, meaning] : kEfforts) {
    if (given != name) continue;
    effort = meaning;
    return;
  }
  fields.refuse(key, "must be low, medium or high");
}

void read_format(Fields& fields, const char* key, const Json* format, std::string& schema) {
  if (format == nullptr || format->is_null()) return;
  const std::string type = text::string_or(*format, "type", "");
  if (type == "text") return;
  if (type == "json_object") {
    schema = R"({"type": "object"})";
    return;
  }
  if (type != "json_schema") return fields.refuse(key, "type must be text, json_object or json_schema");
  // Chat completions have one object more around it than responses.
  const auto inner = format->find("json_schema");
  const Json& holder = inner == format->end() ? *format : *inner;
  if (!holder.is_object() || !holder.contains("schema"))
    return fields.refuse(key, "json_schema has no schema");
  schema = dump(holder["schema"]);
}

void read_stream(Fields& fields, bool& stream, bool& include_usage) {
  fields.read("stream", stream);
  const Json* options = fields.find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) return fields.refuse("stream_options", "must be an object");
  Fields inner(*options);
  inner.read("include_usage", include_usage);
  if (!inner.ok()) fields.refuse("stream_options", inner.refusal()->message);
}

std::variant<std::vector<int32_t>, ApiError> prompt_of(const Json& conversation, const std::string& param,
                                                       const Service& service) {
  Result<std::vector<int32_t>> prompt = service.model.chat_prompt(dump(conversation));
  if (!prompt.ok()) return api_error(prompt.status(), param);
  const auto tokens = static_cast<int>(prompt.value().size());
  if (tokens >= service.model.context()) return context_exceeded(tokens, service.model.context(), param);
  return std::move(prompt).value();
}

std::vector<GenerationRequest> repeated(const GenerationRequest& request, int n) {
  std::vector<GenerationRequest> requests(n, request);
  for (int i = 0; i < n; ++i) requests[i].sampling.seed += i;
  return requests;
}

}  // namespace moesaic::openai
