// The tools that a request offers, the duty to call one, and the form of the answer; the same for chat
// completions and responses.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "moesaic/conversation.h"
#include "moesaic/engine.h"
#include "openai/answer.h"
#include "openai/generation_fields.h"

namespace moesaic::openai {

// A function as its client knows it. space: of Responses' tools of type namespace (MCP servers); else empty.
struct FunctionName {
  std::string name, space;
  // The model's name for it: "server__search". Names in different namespaces may be the same.
  std::string in_prompt() const;
};

struct OfferedFunction {
  FunctionName name;
  Tool tool;            // as the prompt has it, by name.in_prompt()
  bool strict = false;  // its arguments must follow the schema
};

struct Tools {
  std::vector<OfferedFunction> functions;
  enum class Choice { kNone, kAuto, kRequired, kNamed } choice = Choice::kAuto;
  std::string named;
  // allowed_tools: the names of the functions that may be called, of all that the prompt names.
  std::optional<std::vector<std::string>> allowed;
  bool one_call = false;  // the answer ends with its first call

  // These tell whether the answer may hold calls, whether one of this function, and whether it must be one.
  bool offered() const { return !functions.empty() && choice != Choice::kNone; }
  bool may_call(const std::string& name) const;
  // A function's name in a history: without the namespace, unless it is offered with it.
  std::string in_prompt(const FunctionName& name) const;
  bool must_call() const { return choice == Choice::kRequired || choice == Choice::kNamed; }
};

// tools and tool_choice, both in the shape of chat completions ({type: function, function: {name}}) and of
// responses ({type: function, name}). Functions in a tool of type namespace are tools too; others are left
// out.
Tools read_tools(Fields& fields);

// parallel_tool_calls
void read_parallel_calls(Fields& fields, Tools& tools);

// A new id for a call; its end tells the history's reader what the call was like: the mark, and the header.
std::string call_id(const char* prefix, const TextPiece& call, std::string_view mark = {});
// A call's arguments for APIs that give them as text: {} where the model wrote nothing.
std::string arguments_text(const std::string& text);
// A call's arguments in parts for a stream, a few words each and in whole characters: clients show what they
// have of an object. At least one.
std::vector<std::string> arguments_in_parts(const std::string& text);
// A call's arguments for APIs that give them as an object: the model's text, so that no number is rounded
// (see spliced()). Where the model wrote something else, it is an object that holds that text.
Json arguments_object(const std::string& text);

// The functions that an answer may call, by the client's names. What an answer says to anyone else is no
// call, but text.
class Callable {
 public:
  Callable() = default;
  explicit Callable(const Tools& tools);

  // The name, as the prompt has it, of the function that a call is for: "get_weather" for
  // "functions.get_weather". Empty where it was not offered.
  std::string name_of(const std::string& recipient) const;
  // For such a name.
  const FunctionName& function(const std::string& in_prompt) const { return names_.at(in_prompt); }

 private:
  std::map<std::string, FunctionName> names_;
};

// A chat without messages: what the prompt says of a request's tools, answer and thinking.
Conversation new_conversation(const Tools& tools, const AnswerForm& form, const Thinking& thinking,
                              const Service& service);

// The form that an answer must have: of a schema, where there is one, in its final channel, and of the tools'
// calls: where one must be made, or where a tool is strict. No grammar where there is nothing to hold to.
std::variant<AnswerGrammar, ApiError> grammar_of(const Tools& tools, const AnswerForm& form, bool chat,
                                                 const Service& service);

}  // namespace moesaic::openai
