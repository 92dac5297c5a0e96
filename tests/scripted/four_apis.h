// One question and one answer, as each of the four chat APIs has them.
#pragma once

#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "scripted_server.h"

namespace moesaic::scripted {

// The parts of an answer that a client has, whatever its API.
struct Said {
  std::string reasoning, content;
  std::vector<std::pair<std::string, std::string>> calls;  // names, and arguments as JSON
  std::string finish;                                      // stop, tool_calls or length
  int tokens = 0;
  bool operator==(const Said&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Said& said);

// True if the answer that was cut off says the beginning of what the whole one says.
bool begins(const Said& cut, const Said& whole);

struct Question {
  std::string script;
  int limit = 0;  // tokens; 0: as many as it takes
  std::vector<std::string> stop;
  bool one_call = false;  // in an answer, where the API can say so
};

struct Api {
  const char *name, *path;
  bool objects;          // calls have an object, not a text, as their arguments
  bool can_limit_calls;  // Question::one_call
  Json (*body)(const Question& question);
  Said (*whole)(const Json& answer);
  Said (*streamed)(const std::string& events);

  Said ask(const ScriptedServer& server, const Question& question, bool stream) const;
};
const std::vector<Api>& apis();

// The functions that every question offers; `read` takes a path.
inline constexpr const char *kRead = "read", *kTime = "get_time";

}  // namespace moesaic::scripted
