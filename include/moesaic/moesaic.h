/* moesaic for C and for whatever calls C. What engine.h says about a Model holds here; see
 * examples/generate.c.
 *
 * Threads: one thread at a time uses a model, except that moesaic_cancel, moesaic_stats, moesaic_tokenize,
 * moesaic_detokenize, moesaic_chat_prompt, moesaic_context and moesaic_vocab may be called from any thread at
 * any time while it is open. Callbacks are called by the thread in moesaic_step or moesaic_run; of this model
 * they may call moesaic_submit and what any thread may. moesaic_last_error is the calling thread's own.
 *
 * Errors: a function that can fail returns a moesaic_status; where it is not MOESAIC_OK, moesaic_last_error()
 * is one line that says what, where and what to do, and nothing was written through the pointers given.
 * Nothing is thrown, and callbacks must not throw.
 *
 * Structs begin with their size in bytes, which their init function fills in with the defaults, so that later
 * versions can add fields at the end. Text is UTF-8; strings end with 0 unless a length stands beside them.
 */
#ifndef MOESAIC_MOESAIC_H
#define MOESAIC_MOESAIC_H

#include <stddef.h>
#include <stdint.h>

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

const char* moesaic_version(void); /* such as "0.1.0" */
/* Of this thread's last call that failed; valid until its next one that fails. Never NULL. */
const char* moesaic_last_error(void);
/* Frees what a function below gave. NULL is nothing. */
void moesaic_free(void* memory);

/* --- A model
 * ----------------------------------------------------------------------------------------------------- */

typedef struct moesaic_options {
  size_t size;
  const char* device;      /* "auto", "cpu", "cuda", "cuda:1" or "reference" */
  int32_t threads;         /* of the cpu device; 0: one per physical core */
  int32_t context;         /* tokens that one request may reach; 0: 8192 or the model's, whichever is less */
  int32_t max_batch;       /* requests that are worked on at a time; the others wait */
  int32_t max_rows;        /* tokens that a step computes */
  int64_t kv_tokens;       /* tokens that the KV cache holds; 0: what is wanted or fits */
  int32_t prefix_cache;    /* 0 or 1: what a prompt has in common with earlier ones is not computed again */
  const char* dense;       /* projections and lm_head in memory: "keep", "bf16", "q8_0", "mxfp8" or "mxfp4" */
  const char* kv_dtype;    /* K and V: "auto" (the device's own), "bf16" or "fp8" (cuda and reference) */
  const char* tokenizer;   /* a tokenizer.json or .tiktoken file instead of the model's own; "": that */
  const char* moe_path;    /* MXFP4 experts: "auto" or "w4a8": engine.h */
  int32_t batch_invariant; /* 0 or 1; cuda: a request's logits are the same bits beside any others; slower */
} moesaic_options;

void moesaic_options_init(moesaic_options* options, size_t size); /* size: sizeof(moesaic_options) */

/* path: a folder with config.json, .safetensors and tokenizer.json, or a .gguf file. options may be NULL. */
moesaic_status moesaic_open(const char* path, const moesaic_options* options, moesaic_model** model);
/* Requests that have not ended are dropped without a word. NULL is nothing. */
void moesaic_close(moesaic_model* model);

int32_t moesaic_context(const moesaic_model* model); /* tokens */
int32_t moesaic_vocab(const moesaic_model* model);

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

/* --- Requests
 * ---------------------------------------------------------------------------------------------------- */

/* A part of an answer's text; valid during the callback. The parts of a tool call come together, once it is
 * complete; of an answer that is cut off, an unfinished call never comes (types.h: TextPiece). */
typedef struct moesaic_text {
  size_t size;
  const char* channel;   /* chat: "analysis", "commentary" or "final"; else "" */
  const char* recipient; /* chat: whom a tool call is for, such as "functions.get_weather"; else "" */
  const char* text;      /* [bytes], whole UTF-8 characters, with a 0 behind it */
  size_t bytes;
  int32_t begins; /* chat: 1 in the first part of a message */
} moesaic_text;

typedef struct moesaic_token {
  size_t size;
  int32_t token;
  double logprob; /* where moesaic_request.logprobs is set: before temperature and filters */
} moesaic_token;

typedef struct moesaic_outcome {
  size_t size;
  moesaic_finish finish;
  const char* error; /* one line with MOESAIC_FINISH_ERROR, else ""; valid during the callback */
  int32_t prompt_tokens, generated_tokens; /* the token that ended the text included */
  int32_t cached_tokens;                   /* of the prompt's, those that had been computed before */
} moesaic_outcome;

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
  const int32_t* stop_tokens; /* [stop_token_count]; none: the model's own */
  size_t stop_token_count;
  int32_t logprobs;        /* 1: of each token */
  const char* json_schema; /* the answer follows it (chat: in its final channel); NULL: any text */

  void* user;                                               /* the callbacks' first argument */
  void (*on_token)(void* user, const moesaic_token* token); /* each token; may be NULL */
  void (*on_text)(void* user, const moesaic_text* piece);   /* what tokens add; may be NULL */
  void (*on_end)(void* user, const moesaic_outcome* end);   /* once, last; may be NULL */
} moesaic_request;

void moesaic_request_init(moesaic_request* request, size_t size);

/* Queues a request. *id, where id is not NULL, names it for moesaic_cancel; it is never 0 nor given twice. If
 * this fails no callback is called. */
moesaic_status moesaic_submit(moesaic_model* model, const moesaic_request* request, uint64_t* id);
/* The request ends before the next step. One that has ended or never was is nothing. */
void moesaic_cancel(moesaic_model* model, uint64_t id);

int moesaic_idle(const moesaic_model* model); /* 1: no request is left */
/* One step of all requests at work. Fails if the device does; every request has then ended. */
moesaic_status moesaic_step(moesaic_model* model);
moesaic_status moesaic_run(moesaic_model* model); /* steps until idle */

/* --- Statistics
 * -------------------------------------------------------------------------------------------------- */

typedef struct moesaic_engine_stats {
  size_t size;
  int32_t running, waiting;                         /* requests */
  int32_t pages_used, pages_cached, pages_total;    /* of 32 tokens; full attention */
  int32_t window_used, window_cached, window_total; /* sliding window */
  uint64_t prompt_tokens, generated_tokens;         /* these only grow */
  uint64_t prefix_queried, prefix_hits, preemptions;
} moesaic_engine_stats;

/* As of the last step or submission. Set stats->size to sizeof(moesaic_engine_stats) first. */
void moesaic_stats(const moesaic_model* model, moesaic_engine_stats* stats);

/* NOLINTEND(modernize-use-using,readability-identifier-naming) */

#ifdef __cplusplus
}
#endif
#endif
