// One question and one answer, as each of the four chat APIs has them.
#pragma once

#include <ostream>
#include <string>
#include <tuple>
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
  std::vector<std::string> ids = {};  // the calls', which no two answers share
  bool operator==(const Said& o) const {
    return std::tie(reasoning, content, calls, finish, tokens) ==
           std::tie(o.reasoning, o.content, o.calls, o.finish, o.tokens);
  }
};
std::ostream& operator<<(std::ostream& out, const Said& said);

// True if the answer that was cut off says the beginning of what the whole one says.
bool begins(const Said& cut, const Said& whole);

struct Question {
  std::string script;  // empty: the last of `before` has one
  int limit = 0;       // tokens; 0: as many as it takes
  std::vector<std::string> stop;
  bool one_call = false;        // in an answer, where the API can say so
  Json before = Json::array();  // earlier messages or items, as the API has them
};

struct Api {
  const char *name, *path;
  bool objects;          // calls have an object, not a text, as their arguments
  bool can_limit_calls;  // Question::one_call
  Json (*body)(const Question& question);
  Said (*whole)(const Json& answer);
  Said (*streamed)(const std::string& events);
  void (*add_answer)(const Said& said, Json& history);  // as a client keeps it
  void (*add_result)(const Said& said, size_t call, const std::string& text, Json& history);

  Said ask(const ScriptedServer& server, const Question& question, bool stream) const;
};
const std::vector<Api>& apis();

// The functions that every question offers; `read` takes a path.
inline constexpr const char *kRead = "read", *kTime = "get_time";

}  // namespace moesaic::scripted
