// Parts of a message that a model of text cannot read. Clients send a conversation whole with every turn, so
// such a part in its history must not end it: a note takes its place. In the message that is to be answered
// it is refused, since an answer would be about something else.
#pragma once

#include <string>
#include <string_view>

#include "text/limited_json.h"

namespace moesaic::text {

enum class Media { kRefused, kNoted };

// "image", "audio", "video", "file" or "document" for a part, a block or an item of that kind, in the words
// of any API; empty for others.
std::string_view medium_of(const OrderedJson& part);
// "[image omitted: this model reads text only]"
std::string omitted(std::string_view medium);

// The index of the message that is to be answered: the last one of the user's, unless one of the assistant's
// follows it that has ended, or it stands behind a tool's result, of which it may be a part (pydantic-ai).
// continues: the last message has not ended. messages.size() where there is none.
size_t question_of(const OrderedJson& messages, bool continues);
// For the message with that index in a list that has its question at another.
Media media_of(const OrderedJson& message, bool is_question);

}  // namespace moesaic::text
