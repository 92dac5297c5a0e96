// The answer of /v1/responses: a list of items (reasoning, message, function_call), whole or as the events
// that build it.
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

class ResponsesAnswer : public Answer {
 public:
  struct Options {
    Callable functions;                // text for another recipient is a message
    bool logprobs = false;             // for the tokens of messages
    bool encrypted_reasoning = false;  // reasoning items carry encrypted_content
    bool reasoning = true;             // is shown
    // Keeps the response when it is complete; null: it is not kept.
    ResponseStore* store = nullptr;
    std::string owner = {}, holder = {};  // see StoredResponse
    std::string input = "[]";             // the items that led to it, a JSON array
  };
  // echo: what the response repeats of the request. The model must outlive the answer.
  ResponsesAnswer(const Service& service, Json echo, Options options);

  void add(const AnswerEvent& event, std::string* sse) override;
  bool complete() const override { return ended_; }
  void finish(std::string& sse) override;
  std::string whole() override;
  void fail(const ApiError& error, std::string& sse) override;
  Usage usage() const override;

 private:
  enum class Kind { kReasoning, kMessage, kCall };
  struct Item {
    Kind kind = Kind::kMessage;
    std::string id, call_id, text;
    std::string phase;      // a message's: commentary or final_answer
    Paragraphs messages;    // the model's messages in it: neighbours of one kind are one item
    FunctionName function;  // a call's
    const char* status = "in_progress";
    ArrayText logprobs;  // a message's tokens
  };

  Kind kind_of(const TextPiece& piece) const;
  static const char* phase_of(const TextPiece& piece);
  void take(const TextPiece& piece, std::string* sse);
  void open(const TextPiece& piece, std::string* sse);
  bool continues(const TextPiece& piece) const;
  // status: completed, or incomplete where the answer was cut off within the item.
  void close(const char* status, std::string* sse);
  void begin(std::string& sse);
  // An event about the open item; data joins item_id and output_index.
  void emit_item(const char* type, const Json& data, std::string* sse);
  void emit(const char* type, const Json& data, std::string& sse);
  // The log-probabilities of a message's tokens, for its item and its event.
  Json add_logprobs(const std::vector<SampledToken>& shown);
  Json item_json(const Item& item) const;
  static Json call_json(const Item& item);
  static Json part_json(const Item& item);
  Json response(const char* status) const;
  void keep(const Json& complete);
  Json usage_json() const;
  const char* final_status() const;

  const Model& model_;
  std::string id_, name_;
  int64_t created_;
  Json echo_;
  Options options_;
  SpecialTokens special_;
  WaitingTokens waiting_;  // with logprobs
  std::vector<Item> items_;
  bool open_ = false;      // the last item may still grow
  bool said_all_ = false;  // its last message is complete
  bool begun_ = false, ended_ = false;
  ReasoningTokens reasoning_tokens_;
  int sequence_ = 0;
  Outcome outcome_;
};

}  // namespace moesaic::openai
