// moesaic as a library: open a model, submit prompts, get text while it is made. See examples/generate.cpp.
//
// One thread at a time uses a Model, except that context(), vocab(), stop_tokens(), tokenize(), detokenize(),
// chat_prompt() and stats() may be called from any thread at any time; so may a stop token be triggered.
// Functions of Callbacks are called from the thread that calls step() or run(), and must not call the Model,
// except that they may submit.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/answer_grammar.h"
#include "moesaic/conversation.h"
#include "moesaic/stats.h"
#include "moesaic/status.h"
#include "moesaic/types.h"

namespace moesaic {

struct ModelParts;  // of the program itself

struct OpenOptions {
  std::string device = "auto";  // auto, cpu, cuda[:i] or reference
  int threads = 0;  // of the cpu device; 0: one per physical core, within affinity and cgroup quota
  // auto: on a machine with several NUMA nodes each of these threads stays on the CPUs of one; off: no.
  std::string cpu_pin = "auto";
  int context = 0;    // tokens that one request may reach; 0: 8192 or the model's, whichever is less
  int max_batch = 1;  // requests that are worked on at a time; the others wait
  // Tokens that the KV cache holds for all requests and for prompts that begin as earlier ones did, at least
  // one context; 0: a context for each of max_batch, or what half of the free memory holds. Where it runs out
  // the youngest request waits and is computed again.
  int64_t kv_tokens = 0;
  // Tokens that a step computes, of all requests, at least max_batch: fewer keep decoding steadier beside
  // long prompts, more read prompts faster.
  int max_rows = 512;
  bool prefix_cache = true;    // what a prompt has in common with earlier ones is not computed again
  std::string dense = "keep";  // attention projections and lm_head in memory: keep, bf16, q8_0, mxfp8, mxfp4
  std::string kv_dtype = "auto";  // K and V: auto (the device's own), bf16 or fp8 (cuda and reference)
  std::string tokenizer;          // a tokenizer.json or .tiktoken file instead of the model's own
  // MXFP4 experts: auto (the device's own kernels) or w4a8 (from MXFP8 activations, as SM120 does, on any
  // device).
  std::string moe_path = "auto";
  // cpu: how weights are asked for ahead of their use: auto (measured when the model is loaded, and kept),
  // none, or t0, t1 or nta and a distance in bytes: t0:1024.
  std::string cpu_prefetch = "auto";
  bool batch_invariant = false;  // cuda: a request's logits are the same bits beside any others; slower
};

// How a request ended.
struct Outcome {
  FinishReason finish = FinishReason::kNone;
  Status error;                                 // not ok with FinishReason::kError
  int prompt_tokens = 0, generated_tokens = 0;  // the token that ended the text included
  int cached_tokens = 0;                        // of the prompt's, those that had been computed before
  int cache_write_tokens = 0;  // of the prompt's, those that were computed and then kept for later prompts
  int recoveries = 0;          // chat: how often the answer left its format and was read as the nearest thing
  // Chat: the answer's messages, for Conversation::messages of the next turn. Of an answer that was cut off,
  // the last one is what there is of it, and an unfinished call is left out.
  std::vector<Message> messages = {};
};

// All but on_end may be empty.
struct Callbacks {
  std::function<void(const SampledToken&)> on_token;  // each token, the one that ends the text included
  std::function<void(const TextPiece&)> on_text;      // what tokens add, in whole UTF-8 characters
  std::function<void(const Outcome&)> on_end;         // once, last
};

struct GenerationRequest {
  std::vector<int32_t> prompt;
  // The prompt comes from chat_prompt: the answer is taken apart into channels. Otherwise it is plain text.
  bool chat = false;
  SamplingParams sampling;   // stop_tokens empty: the model's own
  AnswerGrammar grammar;     // made for the same kind of request, chat or not; its tokens end the text too
  bool reuse_prefix = true;  // false: the whole prompt is computed, whatever earlier ones have left
};

class Model {
 public:
  // path: a folder with config.json, .safetensors and tokenizer.json, or a .gguf file. Loads the weights and
  // allocates the KV cache.
  static Result<Model> open(const std::string& path, const OpenOptions& options = {});
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  int context() const;  // tokens
  int vocab() const;
  // The tokens that end an answer unless a request names others.
  std::vector<int32_t> stop_tokens() const;

  // special: names such as <|start|> become special tokens instead of text. Cancelled: an error.
  Result<std::vector<int32_t>> tokenize(std::string_view text, bool special = false,
                                        const TokenLimit& limit = {}) const;
  // The tokens' bytes, not always valid UTF-8.
  std::string detokenize(std::span<const int32_t> tokens) const;
  // A conversation in the model's own format, up to where the answer begins.
  Result<std::vector<int32_t>> chat_prompt(const Conversation& conversation,
                                           const TokenLimit& limit = {}) const;
  // The same from JSON in the manner of OpenAI's chat completions: a list of messages, or {messages, tools,
  // reasoning_effort, instructions, current_date}.
  Result<std::vector<int32_t>> chat_prompt(std::string_view conversation_json,
                                           const TokenLimit& limit = {}) const;

  // Queues a request. What it asks for is checked now, and on_end is not called if that fails. cancel: the
  // one way to end a request early. Once its source is triggered, from any thread or from a callback, the
  // request ends with FinishReason::kCancelled, before the next step at the latest.
  Status submit(GenerationRequest request, Callbacks callbacks, std::stop_token cancel = {});
  bool idle() const;  // no request is left
  // One step of all requests at work: a token for each that decodes, a part of the prompt for others. Fails
  // if the device does; every request has then ended.
  Status step();
  Status run();  // until idle

  // As of the last step or submission. From any thread.
  EngineStats stats() const;

 private:
  struct Impl;
  friend Model make_model(ModelParts parts);
  explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace moesaic
