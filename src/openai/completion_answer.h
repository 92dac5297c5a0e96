// The answer of /v1/completions, whole or in chunks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "openai/answer.h"
#include "openai/fields.h"
#include "openai/logprobs.h"
#include "openai/spliced_json.h"

namespace moesaic::openai {

// Counts the characters of a text that comes in parts, as it is given out: U+FFFD stands for bytes that are
// no character.
class CharacterCount {
 public:
  void add(std::string_view bytes);
  // The next bytes complete no character.
  void end() { whole_ = begun(), open_.clear(); }
  size_t begun() const { return whole_ + (open_.empty() ? 0 : 1); }

 private:
  size_t whole_ = 0;
  std::string open_;  // the bytes of a character that is not complete
};

class CompletionAnswer : public Answer {
 public:
  struct Options {
    int prompts = 1, n = 1;  // choice i belongs to prompt i / n
    bool logprobs = false, skip_special = false, include_usage = false;
    bool continuous_usage = false;       // each chunk has the usage so far
    std::vector<int> prompt_sizes = {};  // tokens of each prompt, known before the end
    std::vector<std::string> echoes;     // the prompts' texts, to stand before the answers; or none
    bool answered = true;  // false: the prompt alone is wanted, and what is generated is left out
    // vLLM's return_token_ids: of each prompt with its first chunk, and of each token in a chunk of its own
    bool token_ids = false;
    std::vector<std::vector<int32_t>> prompt_tokens = {};  // with token_ids, of each prompt
  };
  // The model must outlive the answer.
  CompletionAnswer(const Service& service, Options options);

  void add(const AnswerEvent& event, std::string* sse) override;
  bool complete() const override { return open_ == 0; }
  void finish(std::string& sse) override;
  std::string whole() override;
  Usage usage() const override;

 private:
  struct Logprobs {
    ArrayText tokens, token_logprobs, top_logprobs, text_offset;
    Json json() const;
  };
  struct Choice {
    std::string text;  // a stream's: only what its next chunk brings
    Logprobs logprobs;
    WaitingTokens waiting;        // with logprobs
    CharacterCount characters;    // with logprobs, of the tokens that have them
    std::vector<int32_t> tokens;  // with token_ids; of a stream: what its next chunk brings
    bool begun = false;           // a chunk has been sent
    Outcome outcome;
  };

  void take_logprobs(const AnswerEvent& event, Choice& choice) const;
  void add_logprob(const SampledToken& token, bool known, bool text, Choice& choice) const;
  bool is_text(int32_t token) const;
  void take_answer(const AnswerEvent& event, Choice& choice) const;
  Json choice_json(int index) const;

  const Model& model_;
  Options options_;
  Json head_;  // id, object, created, model
  std::vector<Choice> choices_;
  int open_;
};

}  // namespace moesaic::openai
