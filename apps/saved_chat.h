// A conversation as JSON in a file of the user's own.
#pragma once

#include <string>

#include "moesaic/conversation.h"

namespace moesaic::app {

inline constexpr size_t kMostSavedBytes = 256 << 20;

// The form that conversation_from_json reads (text/harmony_json.h): all but date and format, which
// are those of the session that goes on with it.
std::string json_of(const Conversation& conversation);

}  // namespace moesaic::app
