// Which tools a request offers and whether one must be called; the same for chat completions and responses.
#pragma once

#include <string>
#include <vector>

#include "moesaic/engine.h"
#include "openai/fields.h"

namespace moesaic::openai {

struct Tools {
  Json list = Json::array();  // functions, as chat_prompt takes them
  enum class Choice { kNone, kAuto, kRequired, kNamed } choice = Choice::kAuto;
  std::string named;

  // Whether the answer may hold calls.
  bool offered() const { return !list.empty() && choice != Choice::kNone; }
};

// tools and tool_choice, both in the shape of chat completions ({type: function, function: {name}}) and of
// responses
// ({type: function, name}). Tools that are not functions are left out.
Tools read_tools(Fields& fields);

// How an answer that must call a tool begins. Empty where the choice is the model's.
Result<std::vector<int32_t>> forced_call(const Tools& tools, const Model& model);

}  // namespace moesaic::openai
