// A conversation as JSON in a file of the user's own.
#pragma once

#include <string>

#include "moesaic/conversation.h"
#include "moesaic/status.h"

namespace moesaic::app {

inline constexpr size_t kMostSavedBytes = 256 << 20;

// As conversation_from_json reads it (text/harmony_json.h): messages, instructions and reasoning effort.
std::string json_of(const Conversation& conversation);

// Replaces the file in one step; only the user can read it. What is there and is no regular file is refused.
Status write_private(const std::string& path, const std::string& bytes);

}  // namespace moesaic::app
