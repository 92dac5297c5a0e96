// A chat as values: what Model::chat_prompt turns into a prompt. The fields are those of OpenAI's harmony
// format.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/status.h"

namespace moesaic {

namespace text {
struct ParsedJson;
}

// A JSON schema that has been read. Immutable, cheap to copy.
class JsonSchema {
 public:
  JsonSchema() = default;  // none
  explicit JsonSchema(std::shared_ptr<const text::ParsedJson> parsed) : parsed_(std::move(parsed)) {}
  // name stands in the error.
  static Result<JsonSchema> parse(std::string_view json, const std::string& name = "the schema");

  bool empty() const { return parsed_ == nullptr; }
  const std::shared_ptr<const text::ParsedJson>& parsed() const { return parsed_; }

 private:
  std::shared_ptr<const text::ParsedJson> parsed_;
};

// One message. Empty strings stand for absent parts.
struct Message {
  std::string role;          // system, developer, user, assistant or tool
  std::string name;          // the author's; for tools, the tool's full name ("functions.get_weather")
  std::string recipient;     // "functions.get_weather" in a tool call
  std::string channel;       // analysis, commentary, final
  std::string content_type;  // "<|constrain|>json", "json", ...
  std::string text;
  bool recipient_last = false;  // in its header the recipient stands behind the channel, not before it
};

// A function that the model may call, in the namespace "functions".
struct Tool {
  std::string name;
  std::string description;
  JsonSchema parameters;  // an object's; empty: the function takes nothing
};

// A structured output: harmony's "Response Formats", which tell the model what its final answer is to look
// like.
struct ResponseFormat {
  std::string name = "response";
  std::string description;
  std::string schema_json;  // empty: there is no format
};

enum class ReasoningEffort { kLow, kMedium, kHigh };

struct Conversation {
  // The prompt leaves out all reasoning (channel analysis) before the assistant's last final answer; what
  // follows that answer is the turn in progress. A first message of role system takes the place of the system
  // message made from the fields below.
  std::vector<Message> messages;
  std::vector<Tool> tools;
  std::string instructions;  // the developer message, with the tools and the format
  ResponseFormat format;
  ReasoningEffort reasoning_effort = ReasoningEffort::kMedium;
  std::string current_date;  // 2025-06-28; empty: not mentioned
  std::string knowledge_cutoff = "2024-06";
  std::string model_identity = "You are ChatGPT, a large language model trained by OpenAI.";
  // The last message, a text or a thought of the assistant's, has not ended: the answer goes on with it.
  bool continues = false;
};

}  // namespace moesaic
