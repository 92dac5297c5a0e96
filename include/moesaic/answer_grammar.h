// Structured output: answers that are JSON of a given schema, or that a regular expression or a grammar
// takes, and calls of given functions with arguments of
// theirs. Sampling is then restricted to the tokens that go on with such an answer, so that what comes out
// parses whatever the temperature; only max_tokens or a stop string can cut it short.
//
// A server compiles when a request comes in (any thread; milliseconds), turns an error into its answer to the
// client, and hands the grammar on in GenerationRequest. docs/user/structured-output.md says what a schema
// may use.
#pragma once

#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "moesaic/status.h"

namespace moesaic {

namespace grammar {
struct CompiledGrammar;
}

struct AnswerFormat {
  struct Function {
    std::string name;         // without "functions."
    std::string json_schema;  // for the arguments; empty: they may be any text
    // If the schema is not supported: true: compile() fails; false: the arguments are any object, with a
    // note.
    bool strict = true;
  };

  // True for a conversation, as in GenerationRequest::chat: the form below is then that of the final channel,
  // and analysis is free but for the answer or call that must follow it. Otherwise the whole text is the
  // answer.
  bool chat = false;
  // Empty: any text (chat only). response_format json_object is {"type": "object"}.
  std::string json_schema = {};
  // Chat: the functions that may be called, and no others. tool_choice: "none" is an empty list, "required"
  // sets must_call, a function by name is a list of that one with must_call.
  std::vector<Function> functions = {};
  bool must_call = false;
  // Instead of json_schema, at most one of:
  std::string regex = {};  // it matches the whole answer; the syntax is JSON Schema's `pattern`
  std::string gbnf = {};   // llama.cpp's grammar; its rule "root" is the answer
  std::vector<std::string> choices = {};  // the answer is one of these texts

  bool any_text() const { return json_schema.empty() && regex.empty() && gbnf.empty() && choices.empty(); }
  std::string key() const;  // equal for equal formats, and for no others
};

// Immutable, cheap to copy.
class AnswerGrammar {
 public:
  AnswerGrammar() = default;  // no restriction
  // Fails with one line that names the place in the schema or grammar and what to do about it. cancel: ends
  // it early, with kCancelled.
  static Result<AnswerGrammar> compile(const AnswerFormat& format, const std::stop_token& cancel = {});

  bool empty() const { return compiled_ == nullptr; }
  bool chat() const;
  // The parts of the schemas that the grammar does not enforce, a line each.
  const std::vector<std::string>& notes() const;
  const std::shared_ptr<const grammar::CompiledGrammar>& compiled() const { return compiled_; }

 private:
  std::shared_ptr<const grammar::CompiledGrammar> compiled_;
};

}  // namespace moesaic
