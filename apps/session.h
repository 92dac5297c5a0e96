// One prompt answered, or a conversation: what `run` does with a model that is loaded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "listener.h"
#include "model_options.h"
#include "moesaic/engine.h"

namespace moesaic::app {

struct RunOptions {
  ModelOptions model;
  std::string prompt, file, system, reasoning = "medium", format = "text", schema_path, schema;
  SamplingParams sampling;       // its seed is made of the next
  std::optional<uint64_t> seed;  // without it one is drawn for each answer
  std::string speculative = OpenOptions{}.speculative;
  std::string kv_disk, tokenizer;
  std::vector<std::string> words;  // behind --, each with an "=" before it
  double kv_host = 0;
  int context = 0, draft_tokens = 0;
  bool raw = false, show_reasoning = false, plain = false, has_prompt = false, verbose = false;
};

struct Generation {
  AnswerText answer;
  Outcome outcome;
  std::vector<int32_t> tokens;  // the stop token that ended them included
  bool stop_token = false;      // there is one
  PromptProgress prompt;        // as of the last step that read a part of it
  double prefill_s = 0, decode_s = 0;
  uint64_t seed = 0;

  double tokens_per_s() const;
};

// Text from outside as the model reads it: what is not UTF-8 becomes U+FFFD, and a note says so. what: its
// name in the note.
std::string readable(const std::string& text, const std::string& what);
// -p: the text, or with @ before it the name of a file with the text; @@ stands for a first @.
Result<std::string> prompt_text(const std::string& prompt);

class Session {
 public:
  Session(const RunOptions& o, const LoadedModel& loaded, Model model, AnswerGrammar grammar);

  // The answer to one message, printed, and how long it took. A message that is not UTF-8 gets a note.
  // kCancelled after Ctrl-C, but not in a terminal's conversation, which goes on.
  Status turn(const std::string& message, bool terminal = false);
  // The last message's answer once more, by another seed; the one before stays if there is no new one. An
  // error where there is no message.
  Status retry();
  // Forgets what was said; the instructions stay.
  void clear();
  // Reads and writes what `render -f` reads: {messages, instructions, reasoning_effort}. Only the user can
  // read the file. Writes over nothing but such a file. With --raw an error.
  Status save(const std::string& path) const;
  Status load(const std::string& path);

  bool raw() const { return o_.raw; }
  const Conversation& conversation() const { return conversation_; }
  void set_instructions(const std::string& text) { conversation_.instructions = text; }
  void set_effort(ReasoningEffort effort) { conversation_.reasoning_effort = effort; }
  // Device, context and why, in a line.
  std::string describe() const;

 private:
  Result<std::vector<int32_t>> prompt_for(const std::string& message);
  Result<Generation> generate(std::vector<int32_t> prompt, bool terminal);
  Status answer(const std::string& message, bool terminal);
  void forget_message();
  void remember(const std::vector<int32_t>& prompt, const Generation& g);
  void report(const Generation& g, bool terminal) const;

  const RunOptions& o_;
  const LoadedModel& loaded_;
  Model model_;
  AnswerGrammar grammar_;
  Conversation conversation_;
  std::vector<int32_t> text_, text_before_;  // --raw: everything so far; before the last message
  std::string last_message_;                 // --raw
  uint64_t tries_ = 0;                       // answers to the last message before the one that is wanted
};

}  // namespace moesaic::app
