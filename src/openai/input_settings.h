// What items of a Responses input say about the answer, and not to the model: configuration_update about
// effort and form, additional_tools and tool_search_output about the tools.
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
