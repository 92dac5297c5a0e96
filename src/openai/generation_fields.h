// Fields and steps that several endpoints share.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "openai/answer.h"
#include "openai/fields.h"

namespace moesaic::openai {

// A request's body, which must be a JSON object.
Result<Json> parse_object(std::string_view body);

// model may be absent; another model than the served one is not found.
void read_model(Fields& fields, const Service& service);
// none, minimal, low, medium, high or xhigh, as the three efforts that the model knows.
void read_effort(Fields& fields, const char* key, std::string& effort);
// response_format of chat completions, or text.format of responses: text, json_object or json_schema, as a
// JSON schema. key: the field that errors name. format may be null.
void read_format(Fields& fields, const char* key, const Json* format, std::string& schema);
// stream and stream_options.include_usage
void read_stream(Fields& fields, bool& stream, bool& include_usage);

// The tokens of a conversation as Model::chat_prompt takes it; refused where they and `more` fill the
// context. param: the field that errors name.
std::variant<std::vector<int32_t>, ApiError> prompt_of(const Json& conversation, const std::string& param,
                                                       const Service& service);

// n generations that differ in their seeds, the first one's being the request's.
std::vector<GenerationRequest> repeated(const GenerationRequest& request, int n);

}  // namespace moesaic::openai
