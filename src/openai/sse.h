// Server-sent events: https://html.spec.whatwg.org/multipage/server-sent-events.html
#pragma once

#include <string>
#include <string_view>

#include "openai/spliced_json.h"

namespace moesaic::openai {

// JSON in which U+0085, U+2028 and U+2029 are escaped. They are allowed in it, but clients that split a
// stream's lines as Python's str.splitlines does would cut it there; the other characters that it cuts at are
// escaped in all JSON.
std::string one_line(std::string_view json);
// "data: ...\n\n", behind "event: name\n" if there is a name. data: JSON without line breaks.
void append_event(std::string& sse, std::string_view data, std::string_view name = {});

inline constexpr std::string_view kDone = "data: [DONE]\n\n";
inline constexpr std::string_view kHeartbeat = ": still working\n\n";  // a comment, which clients skip

}  // namespace moesaic::openai
