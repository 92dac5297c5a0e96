// How the model wrote the JSON of a call's arguments. Clients of APIs that give them as an object write it
// anew, and then the next prompt would differ from the model's own words. So the call's id says it, as it
// does for kRecipientLast (text/conversation_builder.h).
#pragma once

#include <string>
#include <string_view>

#include "moesaic/engine.h"
#include "openai/fields.h"

namespace moesaic::openai {

// The id of a call whose arguments are given as an object.
std::string object_call_id(const char* prefix, const TextPiece& call);
// The text of arguments that come back under this id: as the model wrote them, or without spaces.
std::string text_of_arguments(const Json& arguments, std::string_view id);

}  // namespace moesaic::openai
