// moesaic as a library: open a model, submit prompts, get text while it is made. See examples/generate.cpp.
//
// Threads: every method may be called from any thread at any time, but for moving and destroying a Model; so
// may a stop token be triggered. Two ways to do the work: the program calls step() or run() (of several
// threads in step() one works, the others wait), or after start() a thread of the Model's own does.
// Callbacks are called one at a time from the thread that steps. They must not throw, nor destroy the Model;
// of its methods they may call all but step, run, start, stop, wait, save_kv, load_kv and cached_prefix,
// which then fail. A model belongs to the process that opened it: in one that is forked its methods fail, and
// its destructor frees nothing.
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
#include "moesaic/device.h"
#include "moesaic/kv_events.h"
#include "moesaic/log.h"
#include "moesaic/stats.h"
#include "moesaic/status.h"
#include "moesaic/types.h"

namespace moesaic {

struct ModelParts;  // used by the program itself

// Values of OpenOptions::tp beside a number: as many ranks as pay, and one for each NUMA node of the host.
inline constexpr int kAutoRanks = 0, kRankPerNode = -1;

struct OpenOptions {
  std::string device = "auto";  // auto, cpu, cuda[:i], cuda:i,j (a rank each) or reference
  int threads = 0;  // the cpu device's; 0: one per physical core, within affinity and cgroup quota
  // auto: on a machine with several NUMA nodes each of these threads stays on the CPUs of one; off: no.
  std::string cpu_pin = "auto";
  // Tokens that one request may reach; 0: what the model has, less where kv_tokens or the memory is less
  // (ModelInfo::context_reason).
  int context = 0;
  // Requests that are worked on at a time; the others wait. 0: as many as pay on the device and fit into its
  // memory (ModelInfo::batch_reason).
  int max_batch = 0;
  // Tokens that the KV cache holds for all requests and for prompts that begin as earlier ones did, at least
  // one context; 0: a context for each of max_batch, or what half of a host's free memory holds, or nine
  // tenths of a GPU's. Where it runs out the youngest request, of the client with most at work, waits and is
  // computed again.
  int64_t kv_tokens = 0;
  // Most tokens that a step computes, of all requests; at least max_batch. Fewer keep decoding steady beside
  // long prompts, more process prompts faster. 0: what prompts need for full speed: on a GPU 8,192, 4,096 or
  // 2,048, by its memory, and 2,048 while requests decode; 512 on a CPU.
  int max_rows = 0;
  bool prefix_cache = true;    // the beginning that a prompt shares with earlier ones is not computed again
  std::string dense = "keep";  // attention projections and lm_head in memory: keep, bf16, q8_0, mxfp8, mxfp4
  std::string kv_dtype = "auto";  // K and V: auto (the device's own), bf16 or fp8 (cuda and reference)
  std::string tokenizer = {};     // a tokenizer.json or .tiktoken file instead of the model's own
  // MXFP4 experts: auto (from 16-bit activations on cuda), w4a8 (from MXFP8 ones, for which SM120 has an
  // instruction, on any device), w4a8x2 (from two MXFP8 values each, exact for BF16) or fp8 (Ada, Hopper:
  // prompts and large batches from E4M3 activations, faster and less exact).
  std::string moe_path = "auto";
  // cpu: how weights are asked for ahead of their use: auto (measured when the model is loaded, and kept),
  // none, or t0, t1 or nta and a distance in bytes: t0:1024.
  std::string cpu_prefetch = "auto";
  bool batch_invariant = false;  // cuda: a request's logits are the same bits beside any others; slower
  // cuda: at the first load on a device the experts' kernels are measured, for a second or two, and what is
  // the quickest is kept in the cache folder. False, and with batch_invariant: not.
  bool tune = true;
  // LoRA adapters to apply, as peft saves them: each a folder, or FOLDER:SCALE.
  std::vector<std::string> lora = {};
  // Speculative decoding: tokens are guessed and verified together with the next one; answers are the same.
  // none; ngram: what followed the same tokens earlier in the request; suffix: the same, and in earlier
  // answers to any request (docs/design/speculation.md: what that can tell others); suffix:own: in this
  // request alone, by the same rule; eagle3:FOLDER: by an EAGLE3 draft head for this model, as published;
  // eagle3: by the one that comes with the model "tiny";
  // draft:MODEL: by another model of the same vocabulary, on the same device.
  std::string speculative = "none";
  int draft_tokens = 0;  // tokens of a guess; 0: as many as pay
  // Called from the thread in open(), first with done = 0, then as weights are loaded, a layer at a time. In
  // bytes of the weights as they are stored. False: open() ends with kCancelled, and nothing is left.
  std::function<bool(int64_t done, int64_t total)> progress = {};
  // GiB of host memory for blocks of the prefix cache whose pages others needed: they come back by copy.
  double kv_host = 0;
  // DIR or DIR:GiB: a folder for the same, found again after a restart (docs/design/kv-store.md); one open
  // model at a time uses it. Without GiB half of what is free there. It holds what the texts say, for this
  // user alone. Empty: none.
  std::string kv_disk = {};
  // Ranks that compute the model together, 1 to 8: each has a part of the weights and of K and V. On cuda
  // each has a GPU, from `device` on, or those of a device "cuda:0,2"; else a part of `threads`. Answers are
  // the same bits, on cuda with batch_invariant (docs/design/parallel.md). kAutoRanks: the GPUs that the
  // model needs, or more where they answer one request sooner by a projection. kRankPerNode: cpu: a rank on
  // each NUMA node, with its weights there. What cannot work is one rank (ModelInfo::ranks).
  int tp = 1;
  // cuda: where the experts' weights are. gpu; host:N, those of N layers in host memory, which the CPU
  // computes by `threads` threads; host, those of all layers; auto, of as many as do not fit on the device.
  // ",stream:ROWS" may follow: steps of so many tokens or more bring those experts to the device. Without it
  // the number is measured; ",stream:never" turns it off. ",hot:N" may follow: the N most chosen experts of
  // each of those layers are on the device as well.
  // Empty: auto where gpu_memory is given, else gpu.
  std::string experts = {};
  // cuda: GiB of the device's memory that the model may take, beside some 0.5 that CUDA takes; 0: all that is
  // free.
  double gpu_memory = 0;
  KvWatcher on_kv_event = {};  // sees the prefix cache change
};

// Bytes on the device that a loaded model takes, by what they are for.
struct MemoryUse {
  int64_t weights = 0;    // a drafter's included
  int64_t kv_cache = 0;   // for the tokens of all requests
  int64_t workspace = 0;  // memory that steps work on, where the device counts it
  int64_t sum() const { return weights + kv_cache + workspace; }
};

// The device of a model, and the choices of open() with their reasons.
struct ModelInfo {
  std::string name;            // the model's
  DeviceInfo device;           // memory_free as of now
  std::string device_reason;   // "asked for", "the first usable", or why no GPU is used
  int tp = 1;                  // ranks that compute it
  std::string ranks;           // how many, and why, where OpenOptions::tp is no number; else empty
  int64_t stored_bytes = 0;    // bytes of weights in the model's files
  MemoryUse memory;            // on the device
  int context = 0;             // tokens
  std::string context_reason;  // "asked for", "the model's maximum", "the KV cache's size" or "memory"
  int max_batch = 0;
  std::string batch_reason;  // "asked for", "as many as pay on this device" or "memory"
  int max_rows = 0;          // tokens of a step, at most
  int mixed_rows = 0;        // tokens of a step in which requests decode, at most; 0: max_rows
  int64_t kv_tokens = 0;     // tokens that the KV cache holds
  // "asked for", "a context for each of max_batch", "half of the free memory", "90% of the free memory", or
  // "one context" if that is more
  std::string kv_reason;
  std::string speculative = "none";  // where guesses come from
  int draft_tokens = 0;              // tokens of a guess; 0: as many as pay
  std::string experts;               // which layers' are in host memory; empty: none
  std::string measured;              // cuda: what OpenOptions::tune has measured now; empty: nothing
};

// The end of a request: why it came, and what was counted.
struct Outcome {
  FinishReason finish = FinishReason::kNone;
  Status error = {};                            // not ok with FinishReason::kError
  int prompt_tokens = 0, generated_tokens = 0;  // the token that ended the text included
  int cached_tokens = 0;                        // prompt tokens that had been computed before
  int cache_write_tokens = 0;  // prompt tokens that were computed and then kept for later prompts
  int recoveries = 0;          // chat: how often the answer left its format and was read as the nearest thing
  // Chat: the answer's messages, for Conversation::messages of the next turn, with the text that on_text got.
  // Of an answer that was cut off, the last one is what there is of it, and an unfinished call is left out.
  std::vector<Message> messages = {};
  SpeculationStats speculation = {};
  std::string stop_string = {};  // the one of SamplingParams::stop_strings that ended it; empty: none did
};

// The part of a prompt that is read.
struct PromptProgress {
  int tokens = 0;  // in the prompt
  int cached = 0;  // prompt tokens that had been computed before it began
  int read = 0;    // prompt tokens that are computed now, the cached ones included
  int kept = 0;    // as Outcome::cache_write_tokens
};

// All but on_end may be empty, and on_prompt_token where prompt_logprobs asks for it.
struct Callbacks {
  std::function<void(const SampledToken&)> on_token = {};  // each token, the one that ends the text included
  std::function<void(const TextPiece&)> on_text = {};      // text that tokens add, in whole characters
  std::function<void(const Outcome&)> on_end = {};         // once, last
  // With SamplingParams::prompt_logprobs: each token of the prompt in order, before any on_token; the first
  // has no log-probability.
  std::function<void(const SampledToken&)> on_prompt_token = {};
  // The logits over the vocabulary that follow the token at `position` of the sequence, as the model gives
  // them: before each on_token those that its token is sampled from, and with
  // GenerationRequest::prompt_logits those of all earlier positions. Valid during the call. Sampling is then
  // done by the host, which is slower on cuda.
  std::function<void(int position, std::span<const float> logits)> on_logits = {};
  // May change the logits before each on_token, behind on_logits and before biases, penalties and masks;
  // -infinity forbids a token. Log-probabilities are of what the model gave. The host samples, as with
  // on_logits. NaN and +infinity end the request with an error, and so does a vocabulary all forbidden.
  std::function<void(int position, std::span<float> logits)> change_logits = {};
  // Once, when it waits no longer: it has its place and its pages, and the next step computes its prompt.
  std::function<void()> on_begin = {};
  // Once behind on_begin, and after each step that has read a part of the prompt; the whole prompt is read
  // before the first on_token.
  std::function<void(const PromptProgress&)> on_prompt = {};
};

struct GenerationRequest {
  std::vector<int32_t> prompt = {};
  // The prompt comes from chat_prompt: the answer is taken apart into channels. Otherwise it is plain text.
  bool chat = false;
  SamplingParams sampling = {};
  AnswerGrammar grammar = {};  // made for the same kind of request, chat or not; its tokens end the text too
  bool reuse_prefix = true;    // false: the whole prompt is computed, even where the prefix cache has it
  bool prompt_logits = false;  // on_logits sees the prompt's too; the whole prompt is then computed
  // Chat: called for each message that is complete. True: the answer ends with it.
  std::function<bool(const Message&)> ends_after = {};
  bool speculate = true;  // false: none of its tokens are guessed (OpenOptions::speculative)
  // Names whose request this is. Clients share the places of max_batch and take turns where requests wait
  // (docs/design/engine.md); requests without a name are one client's.
  std::string client = {};
  // Only requests with the same salt find what this one leaves in the prefix cache, and a request with a salt
  // gets no drafts from others' answers. Clients that must not learn of each other need different salts.
  std::string cache_salt = {};
};

class Model {
 public:
  // path: a folder with config.json, .safetensors and tokenizer.json, a .gguf file, owner/name in the Hugging
  // Face cache, or "tiny": the bundled model. Loads the weights and allocates the KV cache.
  static Result<Model> open(const std::string& path, const OpenOptions& options = {});
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  ModelInfo info() const;
  int context() const;  // tokens
  int vocab() const;
  // The tokens that end an answer (SamplingParams::stop_tokens).
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
  // if the device does, or memory is exhausted; every request has then ended. After start() an error.
  Status step();
  Status run();  // until idle; after start(): wait()

  // A thread of the Model's own steps whenever there is a request, and calls the callbacks. Where a step
  // fails, the requests end with the error and the thread goes on.
  Status start();
  // Ends that thread after the step in flight. Requests that have not ended stay, for step(), run() or
  // another start(). Nothing where none was started.
  Status stop();
  // Until no request is left. The first error of a step since the last call. An error where no thread was
  // started, or stop() is called meanwhile.
  Status wait();

  // The KV cache of a text, kept and put back. What a text's tokens left in the prefix cache, in pages of 32
  // tokens, is given as bytes; given back, later or to another process with the same model, device and
  // formats (a header with fingerprint, format, version and checksum sees to it), a request that begins with
  // these tokens finds them there. It may be given up again where the room is needed. To fork a text is to
  // submit requests that begin with its tokens, whether it has ended or not: they share its pages, and only
  // the tokens behind the last whole page are computed.
  //
  // How many of the first tokens a request would find now; whole pages.
  // cache_salt, here and below: GenerationRequest::cache_salt of the requests.
  Result<int> cached_prefix(std::span<const int32_t> tokens, const std::string& cache_salt = {});
  // Saves the longest beginning that is there; kNotFound if none is. kUnsupported with prefix_cache = false.
  Result<std::string> save_kv(std::span<const int32_t> tokens, const std::string& cache_salt = {});
  // The tokens that it was saved for. Refuses what is damaged, cut off, of another model, format or version,
  // and what the cache has no room for.
  Result<std::vector<int32_t>> load_kv(std::string_view bytes, const std::string& cache_salt = {});
  // The same in a file, which is replaced in one step and which only its owner can read. Its folder must
  // exist.
  Status save_kv_file(const std::string& path, std::span<const int32_t> tokens);
  Result<std::vector<int32_t>> load_kv_file(const std::string& path);

  // The numbers after the last step or submission.
  EngineStats stats() const;

 private:
  struct Impl;
  friend Model make_model(ModelParts parts);
  explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace moesaic
