// OpenAI's harmony chat format: a conversation to the tokens a model is asked to continue. Format reference:
// openai/harmony, docs/format.md; the tokens are those of its render_conversation_for_completion.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moesaic/status.h"
#include "text/tokenizer.h"

namespace moesaic {

// One message. Empty strings stand for absent parts.
struct Message {
  std::string role;          // system, developer, user, assistant or tool
  std::string name;          // the author's; for tools, the tool's full name ("functions.get_weather")
  std::string recipient;     // "functions.get_weather" in a tool call
  std::string channel;       // analysis, commentary, final
  std::string content_type;  // "<|constrain|>json", "json", ...
  std::string text;
};

// A function that the model may call, in the namespace "functions".
struct Tool {
  std::string name;
  std::string description;
  std::string parameters_json;  // a JSON schema; empty: the function takes nothing
};

// A structured output: harmony's "Response Formats", which tell the model what its final answer is to look
// like.
struct ResponseFormat {
  std::string name = "response";
  std::string description;
  std::string schema_json;  // empty: there is no format
};

enum class ReasoningEffort { kLow, kMedium, kHigh };

// Which analysis messages of earlier turns stay in the prompt.
enum class AnalysisPruning {
  // As openai/harmony: if the assistant's last message is a final answer, what it thought before its first
  // final answer is dropped.
  kReference,
  // All that was thought before the last final answer is dropped; what follows it is the turn in progress.
  kBeforeLastAnswer,
  kKeepAll
};

struct Conversation {
  // A first message of role system takes the place of the system message made from the fields below.
  std::vector<Message> messages;
  std::vector<Tool> tools;
  std::string instructions;  // the developer message, with the tools and the format
  ResponseFormat format;
  ReasoningEffort reasoning_effort = ReasoningEffort::kMedium;
  std::string current_date;  // 2025-06-28; empty: not mentioned
  std::string knowledge_cutoff = "2024-06";
  std::string model_identity = "You are ChatGPT, a large language model trained by OpenAI.";
  AnalysisPruning pruning = AnalysisPruning::kReference;
};

// Ends with <|start|>assistant. Text never becomes special tokens, whatever it says; only a content type that
// begins with <|constrain|> does. Fails on unknown roles, tool messages without a name, parameters that are
// not a JSON object, and tokenizers without harmony's special tokens.
Result<std::vector<int32_t>> render_conversation(const Conversation& conversation, const Tokenizer& tokenizer,
                                                 const TokenLimit& limit = {});

// The text of the two messages that a conversation's fields make.
std::string system_text(const Conversation& conversation);
Result<std::string> developer_text(const Conversation& conversation);

}  // namespace moesaic
