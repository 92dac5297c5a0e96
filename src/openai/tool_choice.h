// Which tools a request offers, whether one must be called, and the form of the answer; the same for chat
// completions and responses.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "moesaic/engine.h"
#include "openai/answer.h"
#include "openai/generation_fields.h"

namespace moesaic::openai {

// A function as its client knows it. space: of Responses' tools of type namespace (MCP servers); else empty.
struct FunctionName {
  std::string name, space;
  // What the model calls it: "server__search". Names in different namespaces may be the same.
  std::string told() const;
};

struct Tools {
  Json list = Json::array();        // functions, as chat_prompt takes them
  std::vector<FunctionName> names;  // of each in the list
  enum class Choice { kNone, kAuto, kRequired, kNamed } choice = Choice::kAuto;
  std::string named;
  // allowed_tools: the names of the functions that may be called, of all that the model is told.
  std::optional<std::vector<std::string>> allowed;

  // Whether the answer may hold calls, whether one of this function, and whether it must be one.
  bool offered() const { return !list.empty() && choice != Choice::kNone; }
  bool may_call(const std::string& name) const;
  // What the model is told of a function in a history: its name without the namespace, unless it is offered
  // with it.
  std::string told(const FunctionName& name) const;
  bool must_call() const { return choice == Choice::kRequired || choice == Choice::kNamed; }
};

// tools and tool_choice, both in the shape of chat completions ({type: function, function: {name}}) and of
// responses ({type: function, name}). Functions in a tool of type namespace are tools too; others are left
// out.
Tools read_tools(Fields& fields);

// The functions that an answer may call, by the client's names. What an answer says to anyone else is no
// call, but text.
class Callable {
 public:
  Callable() = default;
  explicit Callable(const Tools& tools);

  // The name, as the model is told it, of the function that a call is for: "get_weather" for
  // "functions.get_weather". Empty where it was not offered.
  std::string name_of(const std::string& recipient) const;
  // For such a name.
  const FunctionName& function(const std::string& told) const { return names_.at(told); }

 private:
  std::map<std::string, FunctionName> names_;
};

// The form that an answer must have: of a schema, where there is one, in its final channel, and of the tools'
// calls: where one must be made, or where a tool is strict. No grammar where there is nothing to hold to.
std::variant<AnswerGrammar, ApiError> grammar_of(const Tools& tools, const AnswerForm& form, bool chat,
                                                 const Service& service);

}  // namespace moesaic::openai
