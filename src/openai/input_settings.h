// Items of a Responses input that set up the answer and are not shown to the model: configuration_update sets
// effort and form, additional_tools and tool_search_output set the tools.
#pragma once

#include "openai/generation_fields.h"
#include "openai/tool_choice.h"

namespace moesaic::openai {

// tools and tool_choice, and the tools that items of the input add. A name is offered once.
Tools read_all_tools(Fields& fields);

// The settings of the last configuration_update that has them; they count before the request's own. form: the
// one of text.format, which is read; format: as the response repeats it.
void read_updates(Fields& fields, Thinking& thinking, AnswerForm& form, Json& format);

}  // namespace moesaic::openai
