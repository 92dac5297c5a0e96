// moesaic.h over engine.h.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <unordered_map>

#include "base/error.h"
#include "moesaic/engine.h"
#include "moesaic/moesaic.h"

struct moesaic_model {
  moesaic::Model model;
  std::mutex mutex;  // of what stands below
  uint64_t last_id = 0;
  std::unordered_map<uint64_t, std::stop_source> cancels = {};  // of requests that have not ended
};

namespace moesaic {
namespace {

thread_local std::string last_error;

moesaic_status code_of(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return MOESAIC_OK;
    case StatusCode::kUsage:
    case StatusCode::kInvalidArgument:
      return MOESAIC_INVALID_ARGUMENT;
    case StatusCode::kNotFound:
      return MOESAIC_NOT_FOUND;
    case StatusCode::kOutOfMemory:
      return MOESAIC_OUT_OF_MEMORY;
    case StatusCode::kUnsupported:
      return MOESAIC_UNSUPPORTED;
    case StatusCode::kIo:
      return MOESAIC_IO;
    case StatusCode::kCancelled:
      return MOESAIC_CANCELLED;
    case StatusCode::kInternal:
      break;
  }
  return MOESAIC_INTERNAL;
}

void remember(const char* error) noexcept {
  try {
    last_error = error;
  } catch (const std::exception&) {
    last_error.clear();
  }
}

// Runs a body that returns a Status; remembers its error. Nothing gets out of it, not even what a caller's
// callback throws.
template <typename Body>
moesaic_status enter(Body&& body) noexcept {
  try {
    const Status status = body();
    if (!status.ok()) remember(status.message().c_str());
    return code_of(status.code());
  } catch (const std::bad_alloc&) {
    remember("out of memory");
    return MOESAIC_OUT_OF_MEMORY;
  } catch (const std::exception& e) {
    remember(e.what());
    return MOESAIC_INTERNAL;
  } catch (...) {
    remember("an exception of unknown type");
    return MOESAIC_INTERNAL;
  }
}

// The caller's struct, which may be of an older version and shorter, over today's defaults.
template <typename T>
Status read(const T* given, T& values) {
  if (given->size < sizeof(size_t) || given->size > sizeof(T))
    return invalid("a struct of {} bytes where this version has {}: call its init function", given->size,
                   sizeof(T));
  std::memcpy(&values, given, given->size);
  return {};
}

template <typename T>
void write(const T& values, T* given, size_t size) {
  std::memcpy(given, &values, std::min(size, sizeof(T)));
  given->size = std::min(size, sizeof(T));
}

constexpr moesaic_options kOptions = {.size = sizeof(moesaic_options),
                                      .device = "auto",
                                      .threads = 0,
                                      .context = 0,
                                      .max_batch = 1,
                                      .max_rows = 512,
                                      .kv_tokens = 0,
                                      .prefix_cache = 1,
                                      .dense = "keep",
                                      .kv_dtype = "auto",
                                      .tokenizer = "",
                                      .moe_path = "auto",
                                      .batch_invariant = 0};

moesaic_request default_request() {
  moesaic_request r{};
  r.size = sizeof r;
  r.temperature = r.top_p = r.repetition_penalty = 1;
  return r;
}

template <typename T>
Status hand_out(const T* data, size_t count, T** out, size_t* out_count) {
  T* const copy = static_cast<T*>(std::malloc((count + 1) * sizeof(T)));
  if (copy == nullptr) return error(StatusCode::kOutOfMemory, "out of memory");
  std::copy_n(data, count, copy);
  copy[count] = 0;
  *out = copy;
  *out_count = count;
  return {};
}

Status hand_out(const Result<std::vector<int32_t>>& tokens, int32_t** out, size_t* count) {
  RETURN_IF_ERROR(tokens.status());
  return hand_out(tokens.value().data(), tokens.value().size(), out, count);
}

SamplingParams sampling_of(const moesaic_request& r) {
  SamplingParams s{.temperature = r.temperature,
                   .top_p = r.top_p,
                   .top_k = r.top_k,
                   .min_p = r.min_p,
                   .repetition_penalty = r.repetition_penalty,
                   .presence_penalty = r.presence_penalty,
                   .frequency_penalty = r.frequency_penalty,
                   .logit_bias = {},
                   .seed = r.seed,
                   .max_tokens = r.max_tokens,
                   .stop_tokens = {r.stop_tokens, r.stop_tokens + r.stop_token_count},
                   .stop_strings = {r.stop_strings, r.stop_strings + r.stop_string_count},
                   .top_logprobs = r.logprobs != 0 ? 0 : -1};
  for (size_t i = 0; i < r.bias_count; ++i) s.logit_bias[r.biases[i].token] = r.biases[i].bias;
  return s;
}

Result<GenerationRequest> generation_of(const moesaic_request& r) {
  GenerationRequest g{.prompt = {r.prompt, r.prompt + r.prompt_tokens},
                      .chat = r.chat != 0,
                      .sampling = sampling_of(r),
                      .grammar = {}};
  if (r.json_schema == nullptr) return g;
  ASSIGN_OR_RETURN(g.grammar, AnswerGrammar::compile({.chat = g.chat, .json_schema = r.json_schema}));
  return g;
}

void pass_token(const moesaic_request& r, const SampledToken& t) {
  const moesaic_token token{.size = sizeof token, .token = t.token, .logprob = t.logprobs.logprob};
  r.on_token(r.user, &token);
}

void pass_text(const moesaic_request& r, const TextPiece& p) {
  const moesaic_text piece{.size = sizeof piece,
                           .channel = p.channel.c_str(),
                           .recipient = p.recipient.c_str(),
                           .text = p.text.c_str(),
                           .bytes = p.text.size(),
                           .begins = p.begins ? 1 : 0};
  r.on_text(r.user, &piece);
}

void pass_end(const moesaic_request& r, const Outcome& o) {
  if (r.on_end == nullptr) return;
  const moesaic_outcome outcome{.size = sizeof outcome,
                                .finish = static_cast<moesaic_finish>(o.finish),
                                .error = o.error.message().c_str(),
                                .prompt_tokens = o.prompt_tokens,
                                .generated_tokens = o.generated_tokens,
                                .cached_tokens = o.cached_tokens};
  r.on_end(r.user, &outcome);
}

static_assert(static_cast<int>(FinishReason::kStop) == MOESAIC_FINISH_STOP &&
              static_cast<int>(FinishReason::kLength) == MOESAIC_FINISH_LENGTH &&
              static_cast<int>(FinishReason::kCancelled) == MOESAIC_FINISH_CANCELLED &&
              static_cast<int>(FinishReason::kError) == MOESAIC_FINISH_ERROR);

void forget(moesaic_model& m, uint64_t id) {
  const std::lock_guard lock(m.mutex);
  m.cancels.erase(id);
}

// `request` has had its pointers followed: only `user` and the callbacks are still used.
Callbacks callbacks_of(moesaic_model& m, uint64_t id, const moesaic_request& request) {
  Callbacks c;
  if (request.on_token != nullptr) c.on_token = [request](const SampledToken& t) { pass_token(request, t); };
  if (request.on_text != nullptr) c.on_text = [request](const TextPiece& p) { pass_text(request, p); };
  c.on_end = [&m, id, request](const Outcome& o) {
    forget(m, id);
    pass_end(request, o);
  };
  return c;
}

Status submit(moesaic_model& m, const moesaic_request* given, uint64_t* id_out) {
  moesaic_request request = default_request();
  RETURN_IF_ERROR(read(given, request));
  ASSIGN_OR_RETURN(GenerationRequest generation, generation_of(request));
  std::stop_source cancel;
  std::unique_lock lock(m.mutex);
  const uint64_t id = ++m.last_id;
  m.cancels.emplace(id, cancel);
  lock.unlock();
  Status status = m.model.submit(std::move(generation), callbacks_of(m, id, request), cancel.get_token());
  if (!status.ok()) forget(m, id);
  if (status.ok() && id_out != nullptr) *id_out = id;
  return status;
}

}  // namespace
}  // namespace moesaic

using namespace moesaic;

const char* moesaic_version() { return MOESAIC_VERSION; }
const char* moesaic_last_error() { return last_error.c_str(); }
void moesaic_free(void* memory) { std::free(memory); }

void moesaic_options_init(moesaic_options* options, size_t size) { write(kOptions, options, size); }
void moesaic_request_init(moesaic_request* request, size_t size) { write(default_request(), request, size); }

moesaic_status moesaic_open(const char* path, const moesaic_options* options, moesaic_model** model) {
  return enter([&]() -> Status {
    moesaic_options o = kOptions;
    if (options != nullptr) RETURN_IF_ERROR(read(options, o));
    if (o.threads < 0) return invalid("{} threads", o.threads);
    ASSIGN_OR_RETURN(Model opened, Model::open(path, {.device = o.device,
                                                      .threads = o.threads,
                                                      .context = o.context,
                                                      .max_batch = o.max_batch,
                                                      .kv_tokens = o.kv_tokens,
                                                      .max_rows = o.max_rows,
                                                      .prefix_cache = o.prefix_cache != 0,
                                                      .dense = o.dense,
                                                      .kv_dtype = o.kv_dtype,
                                                      .tokenizer = o.tokenizer,
                                                      .moe_path = o.moe_path,
                                                      .batch_invariant = o.batch_invariant != 0}));
    *model = new moesaic_model{.model = std::move(opened), .mutex = {}};
    return {};
  });
}

void moesaic_close(moesaic_model* model) { delete model; }

int32_t moesaic_context(const moesaic_model* m) { return m->model.context(); }
int32_t moesaic_vocab(const moesaic_model* m) { return m->model.vocab(); }

moesaic_status moesaic_tokenize(const moesaic_model* m, const char* text, size_t bytes, int special,
                                int32_t** tokens, size_t* count) {
  return enter([&] { return hand_out(m->model.tokenize({text, bytes}, special != 0), tokens, count); });
}

moesaic_status moesaic_detokenize(const moesaic_model* m, const int32_t* tokens, size_t count, char** text,
                                  size_t* bytes) {
  return enter([&]() -> Status {
    for (const int32_t t : std::span(tokens, count)) {
      if (t < 0 || t >= m->model.vocab())
        return invalid("token {} is outside the vocabulary of {}", t, m->model.vocab());
    }
    const std::string s = m->model.detokenize({tokens, count});
    return hand_out(s.data(), s.size(), text, bytes);
  });
}

moesaic_status moesaic_chat_prompt(const moesaic_model* m, const char* conversation, int32_t** tokens,
                                   size_t* count) {
  return enter([&] { return hand_out(m->model.chat_prompt(conversation), tokens, count); });
}

moesaic_status moesaic_submit(moesaic_model* m, const moesaic_request* request, uint64_t* id) {
  return enter([&] { return submit(*m, request, id); });
}

void moesaic_cancel(moesaic_model* m, uint64_t id) {
  enter([&]() -> Status {
    const std::lock_guard lock(m->mutex);
    if (const auto found = m->cancels.find(id); found != m->cancels.end()) found->second.request_stop();
    return {};
  });
}

int moesaic_idle(const moesaic_model* m) { return m->model.idle() ? 1 : 0; }

moesaic_status moesaic_step(moesaic_model* m) {
  return enter([&] { return m->model.step(); });
}

moesaic_status moesaic_run(moesaic_model* m) {
  return enter([&] { return m->model.run(); });
}

void moesaic_stats(const moesaic_model* m, moesaic_engine_stats* stats) {
  EngineStats s;
  enter([&]() -> Status {
    s = m->model.stats();
    return {};
  });
  const moesaic_engine_stats now{.size = sizeof now,
                                 .running = s.running,
                                 .waiting = s.waiting,
                                 .pages_used = s.full.used,
                                 .pages_cached = s.full.cached,
                                 .pages_total = s.full.total,
                                 .window_used = s.window.used,
                                 .window_cached = s.window.cached,
                                 .window_total = s.window.total,
                                 .prompt_tokens = s.prompt_tokens,
                                 .generated_tokens = s.generated_tokens,
                                 .prefix_queried = s.prefix_queried,
                                 .prefix_hits = s.prefix_hits,
                                 .preemptions = s.preemptions};
  write(now, stats, stats->size);
}
