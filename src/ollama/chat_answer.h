// The answer of /api/chat and /api/generate: one JSON document, or a line of JSON for each token that has
// text.
#pragma once

#include <chrono>
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

namespace moesaic::ollama {

class ChatAnswer : public openai::Answer {
 public:
  enum class Shape { kChat, kGenerate };
  struct Options {
    Shape shape = Shape::kChat;
    openai::Callable functions;  // text for another recipient is content
    bool thinking = true;        // is shown
    bool logprobs = false;       // for the content's tokens
  };
  ChatAnswer(const openai::Service& service, Options options);

  void add(const openai::AnswerEvent& event, std::string* lines) override;
  bool complete() const override { return ended_; }
  void finish(std::string& lines) override;
  std::string whole() override;
  void fail(const openai::ApiError& error, std::string& lines) override;
  openai::Usage usage() const override;
  std::string_view content_type() const override { return "application/x-ndjson"; }
  std::string_view heartbeat() const override { return {}; }

  // Makes this the answer without a generation that says the model is loaded.
  void set_loaded();

 private:
  using Clock = std::chrono::steady_clock;
  struct Call {
    std::string id, name, arguments;
  };
  // The texts that one event adds, or those of the whole answer.
  struct Part {
    std::string content, thinking;
    std::vector<Call> calls;
    openai::Json logprobs = openai::Json::array();
  };

  Part take(const openai::AnswerEvent& event);
  // first_call: of the part's calls, the index of the first one in the answer.
  openai::Json line(const Part& part, bool done, size_t first_call = 0) const;
  void add_end(openai::Json& json) const;
  std::chrono::steady_clock::duration read_time() const;
  std::chrono::steady_clock::duration eval_time() const;
  const char* done_reason() const;

  std::string name_;
  Options options_;
  const Model& model_;
  openai::SpecialTokens special_;
  openai::WaitingTokens waiting_;  // with logprobs
  Part all_;                       // not of a stream; its logprobs are in logprobs_
  openai::ArrayText logprobs_;     // for whole()
  Paragraphs content_, thinking_;
  size_t calls_told_ = 0;  // by the lines of a stream
  bool ended_ = false, loaded_ = false;
  openai::ReasoningTokens reasoning_tokens_;
  Clock::time_point begun_ = Clock::now(), left_queue_, first_, end_;
  Outcome outcome_;
};

}  // namespace moesaic::ollama
