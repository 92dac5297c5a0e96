// The answer of /v1/chat/completions, whole or in chunks. Each token that gave text is one chunk, so that
// clients can count tokens; a tool call's chunks are sent together when it is complete. The role is sent with
// the first token and not before, because clients measure the time to first token by it.
#pragma once

#include <string>
#include <vector>

#include "api/paragraphs.h"
#include "openai/answer.h"
#include "openai/fields.h"
#include "openai/logprobs.h"
#include "openai/reasoning_tokens.h"
#include "openai/special_tokens.h"
#include "openai/spliced_json.h"
#include "openai/tool_choice.h"

namespace moesaic::openai {

class ChatAnswer : public Answer {
 public:
  struct Options {
    int choices = 1;
    Callable functions;             // text for another recipient is content
    bool logprobs = false;          // for the tokens of the content
    bool include_usage = false;     // a last chunk with the usage and without choices
    bool continuous_usage = false;  // each chunk has the usage so far
    int prompt_tokens = 0;          // known before the end
    bool reasoning = true;          // is shown
    // vLLM's return_token_ids: a chunk has the ids of all tokens since the one before, the first one the
    // prompt's too
    bool token_ids = false;
    std::vector<int32_t> prompt = {};  // with token_ids
  };
  // The model must outlive the answer.
  ChatAnswer(const Service& service, const Options& options);

  void add(const AnswerEvent& event, std::string* sse) override;
  bool complete() const override { return open_ == 0; }
  void finish(std::string& sse) override;
  std::string whole() override;
  Usage usage() const override;

 private:
  struct Call {
    std::string id, name, arguments;
  };
  struct Choice {
    std::string content, reasoning;
    Paragraphs content_text, reasoning_text;
    std::vector<Call> calls;
    std::vector<int32_t> tokens;  // with token_ids; of a stream: not sent yet
    bool started = false;         // the role has been sent
    WaitingTokens waiting;        // with logprobs
    ArrayText logprobs;           // not of a stream
    Outcome outcome;
    ReasoningTokens reasoning_tokens;
  };
  // The texts that one event adds to a choice.
  struct Delta {
    std::string content, reasoning;
    std::vector<Json> calls;  // each the tool_calls of a chunk of its own
    Json logprobs = Json::array();
    bool empty() const { return content.empty() && reasoning.empty() && calls.empty(); }
  };

  Delta take(const AnswerEvent& event, Choice& choice);
  static void take_call(const TextPiece& piece, const std::string& name, Choice& choice, Delta& delta);
  void take_counts(const AnswerEvent& event, Choice& choice);
  void write(int index, const Json& delta, const Json& logprobs, const char* finish, std::string& sse);
  void write(int index, const Delta& delta, std::string& sse);
  void begin(int index, std::string& sse);
  void write_progress(const AnswerEvent& event, std::string& sse) const;
  static const char* finish_reason(const Choice& choice);
  Json usage_json() const;
  // Behind a chunk's choices: the usage so far, where it is wanted, and the end.
  std::string tail() const;
  Json message_of(const Choice& choice) const;

  const Model& model_;
  Options options_;
  std::string head_;  // the beginning of a chunk, up to its choices
  std::string id_, name_;
  int64_t created_;  // seconds since 1970
  SpecialTokens special_;
  std::vector<Choice> choices_;
  int open_;  // choices that have not ended
};

}  // namespace moesaic::openai
