// One opened model with a thread of its own that steps, and requests as OpenAI's JSON has them. No Python in
// here.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/own_process.h"
#include "moesaic/engine.h"
#include "openai/api_error.h"
#include "openai/grammar_cache.h"
#include "stream.h"

namespace moesaic::python {

inline constexpr int kMostChoices = 4096;  // n of one request

using Tokens = std::vector<int32_t>;

// The server's endpoint for which a request is written.
enum class Endpoint { kCompletions, kChat };

// A request's wishes that its body has no field for.
struct Extras {
  int prompt_logprobs = -1;   // as in SamplingParams
  bool all_logprobs = false;  // each token has the log-probabilities of the whole vocabulary
};

// Rows of logits over the vocabulary.
struct Logits {
  std::vector<float> values;  // [rows, vocab]
  size_t rows = 0, vocab = 0;
};

// Thread-safe. After close() everything fails with one line.
class Engine {
 public:
  static Result<std::unique_ptr<Engine>> open(const std::string& path, const OpenOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Ends every request with an error and frees the model, once other threads' calls have returned.
  void close();
  // Closes the engines that are still open when the interpreter has ended, as daemon threads keep them: their
  // threads must not run while the process destroys its static variables.
  static void close_all() noexcept;

  // The model, for calls of its thread-safe methods.
  Result<std::shared_ptr<Model>> model() const;

  // Queues the generations of a request's body; their indices in `stream` are first, first + 1, .. Unknown
  // fields are refused. Gives the prompts' tokens, one for each
  // generation.
  std::variant<std::vector<Tokens>, openai::ApiError> submit(Endpoint endpoint, std::string_view body,
                                                             const Extras& extras,
                                                             const std::shared_ptr<Stream>& stream,
                                                             int first);

  // The rows that follow each token (all), or the last one. `stream` is a new one: its request ends when they
  // are there, and not earlier may `logits` be read.
  Status start_logits(Tokens tokens, bool all, const std::shared_ptr<Stream>& stream,
                      const std::shared_ptr<Logits>& logits);

 private:
  explicit Engine(std::shared_ptr<Model> model);
  void watch(const std::shared_ptr<Stream>& stream);
  void end_if_closed(const std::shared_ptr<Stream>& stream) const;

  const std::string name_;  // ModelInfo::name
  OwnProcess process_;      // in a forked one everything fails: the mutex may be locked for ever
  mutable std::mutex mutex_;
  std::shared_ptr<Model> model_;  // null: closed
  std::vector<std::weak_ptr<Stream>> streams_;
  openai::GrammarCache grammars_;
};

}  // namespace moesaic::python
