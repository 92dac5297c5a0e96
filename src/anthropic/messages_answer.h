// The answer of /v1/messages: content blocks (thinking, text, tool_use), whole or as the events that build
// them.
#pragma once

#include <string>
#include <vector>

#include "api/paragraphs.h"
#include "openai/answer.h"
#include "openai/fields.h"
#include "openai/reasoning_tokens.h"
#include "openai/special_tokens.h"
#include "openai/tool_choice.h"

namespace moesaic::anthropic {

class MessagesAnswer : public openai::Answer {
 public:
  struct Options {
    openai::Callable functions;  // text for another recipient is text
    bool thinking = false;       // is shown
    bool sealed = false;         // its blocks are empty, and their signature holds the text
    int max_tokens = 0;          // 0: the prompt is only read, and the token behind it is dropped
    int prompt_tokens = 0;       // for a stream's beginning
  };
  MessagesAnswer(const openai::Service& service, Options options);

  void add(const openai::AnswerEvent& event, std::string* sse) override;
  bool complete() const override { return ended_; }
  void finish(std::string& sse) override;
  std::string whole() override;
  void fail(const openai::ApiError& error, std::string& sse) override;
  openai::Usage usage() const override;
  std::string_view heartbeat() const override { return "event: ping\ndata: {\"type\":\"ping\"}\n\n"; }

 private:
  enum class Kind { kThinking, kText, kCall };
  struct Block {
    Kind kind = Kind::kText;
    std::string id, name, text;  // text: of a call, its arguments
    Paragraphs messages;         // for a text or thought
  };

  Kind kind_of(const TextPiece& piece) const;
  void take(const TextPiece& piece, std::string* sse);
  void open(const TextPiece& piece, std::string* sse);
  void close(std::string* sse);
  void begin(std::string& sse);
  openai::Json block_json(const Block& block, bool empty) const;
  std::string signature_of(const Block& block) const;
  openai::Json message_json() const;
  openai::Json usage_json() const;
  openai::Json stop_reason() const;
  openai::Json stop_sequence() const;

  std::string id_, model_;
  Options options_;
  std::vector<Block> blocks_;
  bool begun_ = false, open_ = false, ended_ = false;
  openai::SpecialTokens special_;
  openai::ReasoningTokens reasoning_tokens_;
  Outcome outcome_;
};

}  // namespace moesaic::anthropic
