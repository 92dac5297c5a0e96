/* moesaic for C and for whatever calls C. What engine.h says about a Model holds here; see
 * examples/generate.c.
 *
 * Threads: every function may be called from any thread at any time while the model is open; moesaic_close
 * is the last one. Either the program's threads work in moesaic_step or moesaic_run, or after moesaic_start a
 * thread of the model's own does. Callbacks are called one at a time by the thread that steps; of their model
 * they may call all but moesaic_step, _run, _start, _stop, _wait, the moesaic_kv_ functions and
 * moesaic_close. moesaic_last_error is the calling thread's own.
 *
 * A model belongs to the process that opened it: in one that is forked its functions fail, and moesaic_close
 * frees nothing.
 *
 * Errors: a function that can fail returns a moesaic_status; where it is not MOESAIC_OK, moesaic_last_error()
 * is one line that says what, where and what to do, and nothing was written through the pointers given.
 * A pointer that is NULL where the text does not allow it is MOESAIC_INVALID_ARGUMENT; functions that return
 * no status then return 0 or NULL and set moesaic_last_error(). Nothing is thrown, and callbacks must not
 * throw.
 *
 * Structs begin with their size in bytes, which their init function fills in with the defaults, so that later
 * versions can add fields at the end. Text is UTF-8; strings end with 0 unless a length stands beside them.
 */
#ifndef MOESAIC_MOESAIC_H
#define MOESAIC_MOESAIC_H

#include <stddef.h>
#include <stdint.h>

#include "moesaic/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/* C's spellings. NOLINTBEGIN(modernize-use-using,readability-identifier-naming) */

typedef enum moesaic_status {
  MOESAIC_OK = 0,
  MOESAIC_INVALID_ARGUMENT = 1,
  MOESAIC_NOT_FOUND = 2,
  MOESAIC_OUT_OF_MEMORY = 3,
  MOESAIC_UNSUPPORTED = 4,
  MOESAIC_IO = 5,
  MOESAIC_CANCELLED = 6,
  MOESAIC_INTERNAL = 7
} moesaic_status;

typedef enum moesaic_finish {
  MOESAIC_FINISH_NONE = 0,
  MOESAIC_FINISH_STOP = 1, /* the model ended its answer, or a stop string came */
  MOESAIC_FINISH_LENGTH = 2,
  MOESAIC_FINISH_CANCELLED = 3,
  MOESAIC_FINISH_ERROR = 4
} moesaic_finish;

typedef struct moesaic_model moesaic_model;

/* Of the linked library: such as "0.1.0", and as MOESAIC_VERSION_NUMBER. */
const char* moesaic_version(void);
int32_t moesaic_version_number(void);
/* Of this thread's last call that failed; valid until its next one that fails. Never NULL. */
const char* moesaic_last_error(void);
/* Frees what a function below gave. NULL is nothing. */
void moesaic_free(void* memory);

/* --- Log and devices
 * --------------------------------------------------------------------------------------------- */

typedef enum moesaic_log_level {
  MOESAIC_LOG_ERROR = 0,
  MOESAIC_LOG_WARNING = 1,
  MOESAIC_LOG_INFO = 2,
  MOESAIC_LOG_DEBUG = 3
} moesaic_log_level;

/* Takes what the library says beside its results, a line at a time, from any thread but never from two at
 * once; nothing then goes to standard error. NULL: nothing is said. The old callback is not in use any more
 * when this returns, unless it is itself the caller. What is said because of what the callback does is not
 * passed on. */
typedef void (*moesaic_log_callback)(moesaic_log_level level, const char* message, void* user);
void moesaic_set_log(moesaic_log_callback callback, void* user);

/* moesaic_info holds one, so it gets no more members: what follows there would move. */
typedef struct moesaic_device {
  size_t size;
  const char* name;         /* as moesaic_options.device takes it: "cpu", "cuda:0" or "reference" */
  const char* backend;      /* "cpu", "cuda" or "reference" */
  const char* description;  /* the chip; "": unknown */
  const char* architecture; /* of the code that runs: "sm_90"; cpu: "amx", "avx512", ... */
  int64_t memory_total;     /* bytes; -1: unknown */
  int64_t memory_free;      /* bytes; -1: unknown, as of a GPU that no model is open on */
  int32_t usable;           /* 0 or 1 */
  const char* reason;       /* why it is not usable, else "" */
} moesaic_device;

/* *devices [*count], in the order in which "auto" looks for one, is the caller's to moesaic_free, strings
 * included. Where no GPU can be used, a row says why. Step over the rows by their size. */
moesaic_status moesaic_devices(moesaic_device** devices, size_t* count);

/* --- A model
 * ----------------------------------------------------------------------------------------------------- */

typedef struct moesaic_options {
  size_t size;
  const char* device;      /* "auto", "cpu", "cuda", "cuda:1" or "reference" */
  int32_t threads;         /* of the cpu device; 0: one per physical core */
  int32_t context;         /* tokens that one request may reach; 0: what model, cache and memory have */
  int32_t max_batch;       /* requests that are worked on at a time; the others wait; 0: what pays and fits */
  int32_t max_rows;        /* most tokens that a step computes; 0: what prompts need for full speed */
  int64_t kv_tokens;       /* tokens that the KV cache holds; 0: what is wanted or fits */
  int32_t prefix_cache;    /* 0 or 1: what a prompt has in common with earlier ones is not computed again */
  const char* dense;       /* projections and lm_head in memory: "keep", "bf16", "q8_0", "mxfp8" or "mxfp4" */
  const char* kv_dtype;    /* K and V: "auto" (the device's own), "bf16" or "fp8" (cuda and reference) */
  const char* tokenizer;   /* a tokenizer.json or .tiktoken file instead of the model's own; "": that */
  const char* moe_path;    /* MXFP4 experts: "auto", "w4a8", "w4a8x2" or "fp8": engine.h */
  int32_t batch_invariant; /* 0 or 1; cuda: a request's logits are the same bits beside any others; slower */
  const char* cpu_pin;     /* cpu: "auto" or "off": engine.h */
  const char* cpu_prefetch; /* cpu: "auto" or as engine.h has it */
  /* Called from the thread in moesaic_open, first with done = 0, then after each layer, in bytes of the
   * weights. 0: moesaic_open ends with MOESAIC_CANCELLED, and nothing is left. May be NULL. */
  int (*progress)(void* user, int64_t done, int64_t total);
  void* progress_user;
  const char* const* lora; /* [lora_count] LoRA adapters as peft saves them: each a folder, or FOLDER:SCALE */
  size_t lora_count;
  const char* speculative; /* "none", "ngram", "suffix", "eagle3:FOLDER", ..: engine.h */
  int32_t draft_tokens;    /* tokens of a guess; 0: as many as pay */
  int32_t no_tuning;   /* 1: cuda: kernels are not measured at the first load on a device: engine.h, tune */
  double kv_host;      /* GiB of host memory for what leaves the KV cache; 0: none */
  const char* kv_disk; /* DIR or DIR:GiB for the same, found again after a restart; "": none: engine.h */
  int32_t tp;          /* ranks that compute the model together, 1 to 8, or one of the values below */
  const char* experts; /* cuda: "gpu", "host", "host:LAYERS" or "auto"; "": engine.h */
  double gpu_memory;   /* cuda: GiB of the device's memory that may be taken; 0: all that is free */
} moesaic_options;

/* Values of moesaic_options.tp: as many ranks as pay, and one for each NUMA node of the host: engine.h. */
enum { MOESAIC_TP_AUTO = 0, MOESAIC_TP_NUMA = -1 };

void moesaic_options_init(moesaic_options* options, size_t size); /* size: sizeof(moesaic_options) */

/* path: a folder with config.json, .safetensors and tokenizer.json, a .gguf file, owner/name in the Hugging
 * Face cache, or "tiny": the bundled model. options may be NULL. */
moesaic_status moesaic_open(const char* path, const moesaic_options* options, moesaic_model** model);
/* Requests that have not ended are dropped without a word. NULL is nothing. From a callback of the model it
 * does nothing but set moesaic_last_error(). */
void moesaic_close(moesaic_model* model);

int32_t moesaic_context(const moesaic_model* model); /* tokens */
int32_t moesaic_vocab(const moesaic_model* model);

/* What a model was opened on, what was chosen, and why. Its strings live as long as the model. */
typedef struct moesaic_info {
  size_t size;
  const char* name;           /* the model's */
  moesaic_device device;      /* memory_free as of now */
  const char* device_reason;  /* "asked for", "the first usable", or why no GPU is used */
  int64_t memory_used;        /* bytes on the device: weights, KV cache and workspace together */
  int32_t context;            /* tokens */
  const char* context_reason; /* "asked for", "the model's maximum", "the KV cache's size" or "memory" */
  int32_t max_batch;
  int64_t kv_tokens; /* that the KV cache holds */
  const char* kv_reason;
  int64_t weights_bytes, kv_cache_bytes, workspace_bytes; /* of memory_used, by what they are for */
  int64_t stored_bytes;                                   /* of the weights, as the model's files have them */
  const char* batch_reason; /* "asked for", "as many as pay on this device" or "memory" */
  int32_t max_rows;         /* tokens of a step, at most */
  const char* ranks;        /* how many, and why, where tp was no number; else "" */
} moesaic_info;

/* Set info->size to sizeof(moesaic_info) first. */
moesaic_status moesaic_model_info(const moesaic_model* model, moesaic_info* info);

/* *tokens [*count] is the caller's to moesaic_free. special: names such as <|start|> become special tokens.
 */
moesaic_status moesaic_tokenize(const moesaic_model* model, const char* text, size_t bytes, int special,
                                int32_t** tokens, size_t* count);
/* *text [*bytes], not always valid UTF-8, with a 0 behind it, is the caller's to moesaic_free. */
moesaic_status moesaic_detokenize(const moesaic_model* model, const int32_t* tokens, size_t count,
                                  char** text, size_t* bytes);
/* A conversation as JSON, OpenAI's list of messages or {messages, tools, reasoning_effort, ...}, up to where
 * the answer begins. *tokens as above. */
moesaic_status moesaic_chat_prompt(const moesaic_model* model, const char* conversation_json,
                                   int32_t** tokens, size_t* count);

/* The tokens that end an answer (moesaic_request.stop_tokens). *tokens as above. */
moesaic_status moesaic_stop_tokens(const moesaic_model* model, int32_t** tokens, size_t* count);

/* --- Requests
 * ---------------------------------------------------------------------------------------------------- */

/* A part of an answer's text; valid during the callback. A tool call is one part, once it is complete; of an
 * answer that is cut off, an unfinished call never comes (types.h: TextPiece). */
typedef struct moesaic_text {
  size_t size;
  const char* channel;   /* chat: "analysis", "commentary" or "final"; else "" */
  const char* recipient; /* chat: whom a tool call is for, such as "functions.get_weather"; else "" */
  const char* text;      /* [bytes], whole UTF-8 characters, with a 0 behind it */
  size_t bytes;
  int32_t begins; /* chat: 1 in the first part of a message */
} moesaic_text;

/* Structs that stand in arrays have no size and will not grow. */
typedef struct moesaic_logprob {
  int32_t token;
  double logprob;
} moesaic_logprob;

typedef struct moesaic_token {
  size_t size;
  int32_t token;
  double logprob;             /* where moesaic_request.logprobs is set: before temperature and filters */
  const moesaic_logprob* top; /* [top_count], likeliest first; valid during the callback */
  size_t top_count;
  int32_t is_stop;  /* 1: it ends the text and is not part of it */
  int32_t position; /* on_prompt_token: its place in the prompt; the first has no logprob (0, no top) */
} moesaic_token;

/* A message of an answer; valid during the callback. Absent parts are "". */
typedef struct moesaic_message {
  const char *role, *name, *recipient, *channel, *content_type, *text;
} moesaic_message;

/* A function that a chat may call. The prompt tells of it (moesaic_chat_prompt's tools). */
typedef struct moesaic_function {
  const char* name;        /* without "functions." */
  const char* json_schema; /* of the arguments; NULL or "": they may be any text */
} moesaic_function;

typedef struct moesaic_outcome {
  size_t size;
  moesaic_finish finish;
  const char* error; /* one line with MOESAIC_FINISH_ERROR, else ""; valid during the callback */
  int32_t prompt_tokens, generated_tokens; /* the token that ended the text included */
  int32_t cached_tokens;                   /* of the prompt's, those that had been computed before */
  int32_t cache_write_tokens; /* of the prompt's, those that were computed and kept for later prompts */
  int32_t recoveries;         /* chat: how often the answer left its format */
  /* Chat: [message_count], the answer's messages, calls of functions among them (recipient), with the text
   * that on_text got. */
  const moesaic_message* messages;
  size_t message_count;
  int32_t drafted_tokens, accepted_tokens; /* guessed, and of these, the ones that were right */
} moesaic_outcome;

typedef struct moesaic_tokens {
  const int32_t* tokens; /* [count] */
  size_t count;
} moesaic_tokens;

typedef struct moesaic_bias {
  int32_t token;
  float bias; /* added to its logit */
} moesaic_bias;

/* What it points to is copied by moesaic_submit; `user` is only passed on. */
typedef struct moesaic_request {
  size_t size;
  const int32_t* prompt; /* [prompt_tokens] */
  size_t prompt_tokens;
  int32_t chat; /* 1: the prompt is moesaic_chat_prompt's, and the answer is taken apart into channels */

  double temperature; /* 1; 0: greedy */
  double top_p;       /* 1 */
  double min_p;       /* 0 */
  int32_t top_k;      /* 0: all */
  int32_t max_tokens; /* 0: as many as the context allows */
  uint64_t seed;      /* the same seed, prompt and parameters give the same tokens */
  double repetition_penalty, presence_penalty, frequency_penalty; /* 1, 0, 0 */
  const moesaic_bias* biases;                                     /* [bias_count] */
  size_t bias_count;
  const char* const* stop_strings; /* [stop_string_count]; they end the text and are not part of it */
  size_t stop_string_count;
  /* [stop_token_count]; the model's own end a chat as well, and plain text where none are given or a schema
   * is. */
  const int32_t* stop_tokens;
  size_t stop_token_count;
  int32_t logprobs;        /* 1: of each token */
  const char* json_schema; /* the answer follows it (chat: in its final channel); NULL: any text */

  void* user;                                               /* the callbacks' first argument */
  void (*on_token)(void* user, const moesaic_token* token); /* each token; may be NULL */
  void (*on_text)(void* user, const moesaic_text* piece);   /* what tokens add; may be NULL */
  void (*on_end)(void* user, const moesaic_outcome* end);   /* once, last; may be NULL */

  int32_t top_logprobs; /* with logprobs: of so many of the likeliest tokens too; at most 100 */
  /* [function_count], chat: the functions that may be called, and no others, with arguments of their schemas.
   * must_call: 1: one of them is called. */
  const moesaic_function* functions;
  size_t function_count;
  int32_t must_call;
  int32_t reuse_prefix;    /* 1; 0: the whole prompt is computed, even where the prefix cache has it */
  int32_t min_tokens;      /* 0; until then no stop token is sampled and stop strings do not count */
  int32_t prompt_logprobs; /* -1: none; n: of each prompt token and the n likeliest, to on_prompt_token */
  int32_t prompt_logits;   /* 1: on_logits sees the prompt's too */
  /* Each token of the prompt in order, before any on_token. */
  void (*on_prompt_token)(void* user, const moesaic_token* token);
  /* The logits [count] over the vocabulary that follow the token at `position`, as the model gives them,
   * before each on_token; engine.h: Callbacks::on_logits. May be NULL. */
  void (*on_logits)(void* user, int32_t position, const float* logits, size_t count);
  int32_t no_speculation; /* 1: none of its tokens are guessed (moesaic_options.speculative) */
  /* -1: none; chat: tokens of reasoning, behind which the answer is begun (types.h:
   * SamplingParams::reasoning_budget) */
  int32_t reasoning_budget;
  /* May be NULL. Only requests with the same one share what the prefix cache has (engine.h:
   * GenerationRequest::cache_salt); moesaic_kv_... are for requests without one. */
  const char* cache_salt;

  /* One form for the answer (chat: for its final channel) instead of json_schema; NULL or "", and 0: none.
   * regex: a regular expression that the whole answer matches; grammar: a grammar as llama.cpp's GBNF;
   * choices: [choice_count], the answer is one of these texts (answer_grammar.h). */
  const char* regex;
  const char* grammar;
  const char* const* choices;
  size_t choice_count;
  /* [bad_word_count] sequences of tokens, of which the last is not sampled behind the others. */
  const moesaic_tokens* bad_words;
  size_t bad_word_count;
  /* May change the logits [count], behind on_logits and before biases, penalties and masks: engine.h:
   * Callbacks::change_logits. -INFINITY forbids a token. May be NULL. */
  void (*change_logits)(void* user, int32_t position, float* logits, size_t count);
} moesaic_request;

void moesaic_request_init(moesaic_request* request, size_t size);

/* Queues a request. Values out of range are refused, flags other than 0 and 1 among them. *id, where id is
 * not NULL, names it for moesaic_cancel; it is never 0 nor given twice. If this fails no callback is called.
 */
moesaic_status moesaic_submit(moesaic_model* model, const moesaic_request* request, uint64_t* id);
/* The request ends before the next step. One that has ended or never was is nothing. */
void moesaic_cancel(moesaic_model* model, uint64_t id);

int moesaic_idle(const moesaic_model* model); /* 1: no request is left */
/* One step of all requests at work. Fails if the device does; every request has then ended. */
moesaic_status moesaic_step(moesaic_model* model);
moesaic_status moesaic_run(moesaic_model* model); /* steps until idle; after moesaic_start: moesaic_wait */

/* A thread of the model's own steps whenever there is a request, and calls the callbacks. */
moesaic_status moesaic_start(moesaic_model* model);
/* Ends that thread after the step in flight. Requests that have not ended stay. */
moesaic_status moesaic_stop(moesaic_model* model);
/* Until no request is left. The first error of a step since the last call. */
moesaic_status moesaic_wait(moesaic_model* model);

/* --- The KV cache of a text
 * --------------------------------------------------------------------------------------
 * What a text's tokens left in the prefix cache, in pages of 32 tokens, kept and put back, later or in
 * another process with the same model, device and formats (engine.h: Model::save_kv). To fork a text, submit
 * requests that begin with its tokens: they share its pages. */

/* *cached: how many of the first tokens a request would find now. */
moesaic_status moesaic_kv_cached(moesaic_model* model, const int32_t* tokens, size_t count, size_t* cached);
/* *data [*bytes], of the longest beginning that is there, is the caller's to moesaic_free.
 * MOESAIC_NOT_FOUND: none of it is. */
moesaic_status moesaic_kv_save(moesaic_model* model, const int32_t* tokens, size_t count, void** data,
                               size_t* bytes);
/* *tokens [*count], those that it was saved for, is the caller's to moesaic_free. Refuses what is damaged, of
 * another model, format or version, and what the cache has no room for. */
moesaic_status moesaic_kv_load(moesaic_model* model, const void* data, size_t bytes, int32_t** tokens,
                               size_t* count);
/* The same in a file, which is replaced in one step and which only its owner can read. Its folder must exist.
 */
moesaic_status moesaic_kv_save_file(moesaic_model* model, const char* path, const int32_t* tokens,
                                    size_t count);
moesaic_status moesaic_kv_load_file(moesaic_model* model, const char* path, int32_t** tokens, size_t* count);

/* --- Statistics
 * -------------------------------------------------------------------------------------------------- */

typedef struct moesaic_engine_stats {
  size_t size;
  int32_t running, waiting;                         /* requests */
  int32_t pages_used, pages_cached, pages_total;    /* of 32 tokens; full attention */
  int32_t window_used, window_cached, window_total; /* sliding window */
  uint64_t prompt_tokens, generated_tokens;         /* these only grow */
  uint64_t prefix_queried, prefix_hits, preemptions;
  uint64_t drafts, drafted_tokens, accepted_tokens; /* speculative decoding */
  uint64_t fetched_tokens;         /* of prompts, from kv_host and kv_disk; prefix_hits has them too */
  uint64_t host_bytes, disk_bytes; /* that these have now */
} moesaic_engine_stats;

/* As of the last step or submission. Set stats->size to sizeof(moesaic_engine_stats) first. */
void moesaic_stats(const moesaic_model* model, moesaic_engine_stats* stats);

/* NOLINTEND(modernize-use-using,readability-identifier-naming) */

#ifdef __cplusplus
}
#endif
#endif
