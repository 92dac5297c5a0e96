// A Model's requests, from any thread, and the steps that work on them.
#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <new>

#include "api/answer_stream.h"
#include "api/model_parts.h"
#include "api/option_words.h"
#include "api/stepper.h"
#include "api/thinking_budget.h"
#include "base/error.h"
#include "base/file_cache.h"
#include "base/linked_stop.h"
#include "base/own_process.h"
#include "grammar/compiled_grammar.h"
#include "grammar/mask_cache.h"
#include "moesaic/engine.h"
#include "text/harmony_json.h"

namespace moesaic {
namespace {

// The exception that is being handled, as the failure of its request.
Status failure_of_exception() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return error(StatusCode::kOutOfMemory, "out of memory");
  } catch (...) {
    return error(StatusCode::kInternal, "a step or a callback threw an exception");
  }
}

// A request on its way.
struct Active {
  Active(const Tokenizer& tokenizer, const GenerationRequest& r, Callbacks c, std::stop_token cancel)
      : stream(tokenizer, r.chat, r.sampling.stop_strings,
               {.min_tokens = r.sampling.min_tokens,
                .include_stop = r.sampling.include_stop,
                .skip_special = r.sampling.skip_special,
                .ends_after = r.ends_after}),
        callbacks(std::move(c)),
        stop(std::move(cancel)),
        prompt_logprobs(r.sampling.prompt_logprobs) {
    if (r.chat) stream.continue_from(r.prompt);
  }

  std::shared_ptr<Request> request;
  AnswerStream stream;
  Callbacks callbacks;
  LinkedStop stop;  // by the caller, at the end of a stop string, or after a step that threw
  int prompt_logprobs;
  int prompt_told = 0;  // tokens of the prompt that on_prompt_token has seen
  int generated = 0;
  Status failure;  // set by a step or an on_text that threw

  void show(const std::vector<TextPiece>& pieces) const {
    if (!callbacks.on_text) return;
    for (const TextPiece& piece : pieces) callbacks.on_text(piece);
  }
  void tell_progress(int read) const {
    callbacks.on_prompt(
        {.tokens = request->prompt_tokens, .cached = request->reused, .read = read, .kept = request->kept});
  }
  void tell_prompt_token(TokenLogprobs logprobs) {
    callbacks.on_prompt_token(
        {.token = request->tokens[static_cast<size_t>(prompt_told++)], .logprobs = std::move(logprobs)});
  }
  void tell_first() {
    if (prompt_logprobs >= 0 && prompt_told == 0) tell_prompt_token({});
  }
  // Takes the logits of a prompt's position that another one follows.
  void see_prompt_row(int position, std::span<const float> logits, bool shows) {
    if (shows && callbacks.on_logits) callbacks.on_logits(position, logits);
    if (prompt_logprobs < 0) return;
    tell_first();
    tell_prompt_token(
        logprobs_of(logits, request->tokens[static_cast<size_t>(prompt_told)], prompt_logprobs));
  }
  void take(const SampledToken& sampled) {
    tell_first();
    ++generated;
    if (callbacks.on_token) callbacks.on_token(sampled);
    show(stream.push(sampled.token, sampled.is_stop));
    if (ends_early()) stop.request_stop();
  }
  // Before a stop token.
  bool ends_early() const { return stream.stopped() || stream.over(); }
  FinishReason reason() const {
    if (!failure.ok()) return FinishReason::kError;
    return ends_early() ? FinishReason::kStop : request->finish;
  }
  // An on_text that throws leaves it when on_end has returned.
  void end() {
    std::exception_ptr thrown;
    try {
      show(stream.finish());
    } catch (...) {
      thrown = std::current_exception();
      if (failure.ok()) failure = failure_of_exception();
    }
    callbacks.on_end({.finish = reason(),
                      .error = failure.ok() ? request->error : failure,
                      .prompt_tokens = request->prompt_tokens,
                      .generated_tokens = generated,
                      .cached_tokens = request->reused,
                      .cache_write_tokens = request->kept,
                      .recoveries = stream.recoveries(),
                      .messages = stream.messages(),
                      .speculation = request->drafted.stats,
                      .stop_string = stream.stop_string()});
    if (thrown) std::rethrow_exception(thrown);
  }
};

using ActivePtr = std::shared_ptr<Active>;

// Library code below may throw this; the API does not.
template <typename Body>
auto guarded(Body&& body) -> decltype(body()) try {
  return option_words(body());
} catch (const std::bad_alloc&) {
  return error(StatusCode::kOutOfMemory, "out of memory");
}

Status check(const GenerationRequest& r, const Callbacks& callbacks) {
  if (!callbacks.on_end) return invalid("a request without on_end");
  if (!r.grammar.empty() && r.grammar.chat() != r.chat)
    return invalid("the grammar was made for {}",
                   r.chat ? "plain text, not a chat" : "a chat, not plain text");
  const int prompt_logprobs = r.sampling.prompt_logprobs;
  if (prompt_logprobs > kMostLogprobs)
    return invalid("prompt_logprobs {} is above {}", prompt_logprobs, kMostLogprobs);
  if (prompt_logprobs >= 0 && !callbacks.on_prompt_token)
    return invalid("prompt_logprobs without on_prompt_token, which would get them");
  if (r.prompt_logits && !callbacks.on_logits)
    return invalid("prompt_logits without on_logits, which would get them");
  return {};
}

}  // namespace

struct Model::Impl : ModelParts {
  explicit Impl(ModelParts parts) : ModelParts(std::move(parts)) {}

  OwnProcess process;
  std::mutex mutex;  // guards the members up to the next blank line
  grammar::MaskCache masks{tokenizer};
  std::deque<ActivePtr> inbox;  // submitted, the engine has not seen them

  std::deque<ActivePtr> active;  // used by the thread that steps
  std::atomic<int> left = 0;     // requests whose on_end has not returned
  Stepper stepper{[this] { return step(); }, [this] { return left == 0; }};  // last: its thread ends first

  Status submit(GenerationRequest r, Callbacks callbacks, std::stop_token cancel);
  void limit_reasoning(const GenerationRequest& r, Request& request) const;
  void watch_logits(const ActivePtr& request, bool prompt_logits);
  void take_inbox();
  Status engine_step();
  void end(Active& request);
  void end_all(const std::deque<ActivePtr>& requests);
  Status step();
};

// The engine's request, which owns the callbacks, is owned by `request`: no cycle.
void Model::Impl::watch_logits(const ActivePtr& request, bool prompt_logits) {
  Request& r = *request->request;
  const std::weak_ptr<Active> weak = request;
  if (request->callbacks.on_logits)
    r.on_logits = [weak](int at, std::span<const float> row) { weak.lock()->callbacks.on_logits(at, row); };
  if (request->callbacks.change_logits)
    r.change_logits = [weak](int at, std::span<float> row) { weak.lock()->callbacks.change_logits(at, row); };
  if (!prompt_logits && request->prompt_logprobs < 0) return;
  r.reuse_prefix = false;
  r.on_prompt_logits = [weak, prompt_logits](int at, std::span<const float> row) {
    weak.lock()->see_prompt_row(at, row, prompt_logits);
  };
}

void Model::Impl::limit_reasoning(const GenerationRequest& r, Request& request) const {
  if (r.sampling.reasoning_budget < 0) return;
  const bool must_call = !r.grammar.empty() && r.grammar.compiled()->must_call;
  request.sampler->follow(
      ThinkingBudget::make(tokenizer, request.tokens, r.sampling.reasoning_budget, must_call));
}

Status Model::Impl::submit(GenerationRequest r, Callbacks callbacks, std::stop_token cancel) {
  RETURN_IF_ERROR(process.check());
  RETURN_IF_ERROR(check(r, callbacks));
  std::vector<int32_t>& stops = r.sampling.stop_tokens;
  const bool goes_on = std::ranges::find(stops, kNoToken) != stops.end();
  if (stops.empty() || !r.grammar.empty() || (r.chat && !goes_on)) {
    const std::vector<int32_t> own = tokenizer.stop_tokens();
    stops.insert(stops.end(), own.begin(), own.end());
  }
  auto request = std::make_shared<Active>(tokenizer, r, std::move(callbacks), std::move(cancel));
  const auto on_token = [a = std::weak_ptr(request)](const SampledToken& t) { a.lock()->take(t); };
  ASSIGN_OR_RETURN(request->request,
                   engine.prepare(std::move(r.prompt), r.sampling, on_token, request->stop.token()));
  request->request->reuse_prefix = r.reuse_prefix;
  request->request->speculate = r.speculate;
  request->request->client = r.client;
  limit_reasoning(r, *request->request);
  request->request->on_begin = request->callbacks.on_begin;
  if (request->callbacks.on_prompt)
    request->request->on_prompt = [a = std::weak_ptr(request)](int read) { a.lock()->tell_progress(read); };
  request->request->pages.salt = r.cache_salt;
  watch_logits(request, r.prompt_logits);
  {
    const std::lock_guard lock(mutex);
    if (!r.grammar.empty())
      request->request->sampler->follow(masks.async_matcher(r.grammar, std::move(r.client)));
    inbox.push_back(std::move(request));
    ++left;
  }
  stepper.notify();
  return {};
}

void Model::Impl::take_inbox() {
  std::deque<ActivePtr> taken;
  {
    const std::lock_guard lock(mutex);
    taken = std::exchange(inbox, {});
  }
  for (ActivePtr& a : taken) {
    engine.add(a->request);
    active.push_back(std::move(a));
  }
}

// After a step that threw nobody knows what was computed: the requests end before the next one.
Status Model::Impl::engine_step() {
  try {
    return engine.step();
  } catch (...) {
    const Status failure = failure_of_exception();
    for (const ActivePtr& a : active) {
      a->failure = failure;
      a->stop.request_stop();
    }
    throw;
  }
}

void Model::Impl::end(Active& request) {
  struct Gone {
    std::atomic<int>& left;
    ~Gone() { --left; }
  };
  const Gone gone{left};
  request.end();
}

// Ends all requests, even if a callback of one throws: its exception leaves when the others have heard.
void Model::Impl::end_all(const std::deque<ActivePtr>& requests) {
  std::exception_ptr thrown;
  for (const auto& a : requests) {
    try {
      end(*a);
    } catch (...) {
      if (!thrown) thrown = std::current_exception();
    }
  }
  if (thrown) std::rethrow_exception(thrown);
}

Status Model::Impl::step() {
  return guarded([&] {
    take_inbox();
    Status status = engine_step();
    // on_end may submit: what has ended is taken out before its on_end.
    std::deque<ActivePtr> ended;
    std::copy_if(active.begin(), active.end(), std::back_inserter(ended),
                 [](const auto& a) { return a->request->done(); });
    std::erase_if(active, [](const auto& a) { return a->request->done(); });
    end_all(ended);
    return status;
  });
}

Model make_model(ModelParts parts) { return Model(std::make_unique<Model::Impl>(std::move(parts))); }

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&& other) noexcept {
  if (this == &other) return *this;
  const Model old(std::move(*this));
  impl_ = std::move(other.impl_);
  return *this;
}
// In a forked process there are no threads to end: what it has of the model stays with it until it ends.
Model::~Model() {
  if (impl_ && !impl_->process.here()) static_cast<void>(impl_.release());
}

ModelInfo Model::info() const {
  ModelInfo info = impl_->info;
  info.device = impl_->backend->device();
  return info;
}

int Model::context() const { return impl_->engine.context(); }
int Model::vocab() const { return impl_->config.vocab; }
std::vector<int32_t> Model::stop_tokens() const { return impl_->tokenizer.stop_tokens(); }

Result<std::vector<int32_t>> Model::tokenize(std::string_view text, bool special,
                                             const TokenLimit& limit) const {
  RETURN_IF_ERROR(impl_->process.check());
  return guarded([&] { return impl_->tokenizer.try_encode(text, special, limit); });
}

std::string Model::detokenize(std::span<const int32_t> tokens) const {
  return impl_->tokenizer.decode(tokens);
}

Result<std::vector<int32_t>> Model::chat_prompt(std::string_view conversation_json,
                                                const TokenLimit& limit) const {
  RETURN_IF_ERROR(impl_->process.check());
  return guarded([&]() -> Result<std::vector<int32_t>> {
    ASSIGN_OR_RETURN(const Conversation conversation,
                     conversation_from_json(conversation_json, "conversation"));
    return render_conversation(conversation, impl_->tokenizer, limit);
  });
}

Result<std::vector<int32_t>> Model::chat_prompt(const Conversation& conversation,
                                                const TokenLimit& limit) const {
  RETURN_IF_ERROR(impl_->process.check());
  return guarded([&] { return render_conversation(conversation, impl_->tokenizer, limit); });
}

Status Model::submit(GenerationRequest request, Callbacks callbacks, std::stop_token cancel) {
  return guarded([&] { return impl_->submit(std::move(request), std::move(callbacks), std::move(cancel)); });
}

bool Model::idle() const { return impl_->left == 0; }

Status Model::step() { return impl_->stepper.step(); }

Status Model::run() {
  RETURN_IF_ERROR(impl_->process.check());
  if (impl_->stepper.started()) return wait();
  while (!idle()) RETURN_IF_ERROR(step());
  return {};
}

Status Model::start() { return impl_->stepper.start(); }
Status Model::stop() { return impl_->stepper.stop(); }
Status Model::wait() { return impl_->stepper.wait(); }

Result<int> Model::cached_prefix(std::span<const int32_t> tokens, const std::string& cache_salt) {
  int cached = 0;
  RETURN_IF_ERROR(impl_->stepper.between_steps([&]() -> Status {
    cached = moesaic::cached_prefix(impl_->engine.kv_state(impl_->fingerprint), tokens, cache_salt);
    return {};
  }));
  return cached;
}

Result<std::string> Model::save_kv(std::span<const int32_t> tokens, const std::string& cache_salt) {
  return guarded([&]() -> Result<std::string> {
    std::string bytes;
    RETURN_IF_ERROR(impl_->stepper.between_steps([&]() -> Status {
      ASSIGN_OR_RETURN(bytes, save_prefix(impl_->engine.kv_state(impl_->fingerprint), tokens, cache_salt));
      return {};
    }));
    seal_saved(bytes);
    return bytes;
  });
}

Result<std::vector<int32_t>> Model::load_kv(std::string_view bytes, const std::string& cache_salt) {
  return guarded([&]() -> Result<std::vector<int32_t>> {
    const KvState state = impl_->engine.kv_state(impl_->fingerprint);
    ASSIGN_OR_RETURN(std::vector<int32_t> tokens, read_saved(state, bytes));
    RETURN_IF_ERROR(
        impl_->stepper.between_steps([&] { return load_prefix(state, bytes, tokens, cache_salt); }));
    return tokens;
  });
}

Status Model::save_kv_file(const std::string& path, std::span<const int32_t> tokens) {
  return guarded([&]() -> Status {
    ASSIGN_OR_RETURN(const std::string bytes, save_kv(tokens));
    return replace_whole(path, bytes, Readers::kOwner);
  });
}

// Read before it is looked at: a file that is mapped may change while its pages are put back.
Result<std::vector<int32_t>> Model::load_kv_file(const std::string& path) {
  return guarded([&]() -> Result<std::vector<int32_t>> {
    const size_t most = most_saved_bytes(impl_->engine.kv_state(impl_->fingerprint));
    ASSIGN_OR_RETURN(const std::string bytes, read_whole(path, most));
    auto tokens = load_kv(bytes);
    if (tokens.ok()) return tokens;
    return error(tokens.status().code(), "{}: {}", path, tokens.status().message());
  });
}

EngineStats Model::stats() const {
  if (!impl_->process.here()) return {};
  EngineStats stats = impl_->engine.stats();
  const std::lock_guard lock(impl_->mutex);
  stats.waiting += static_cast<int>(impl_->inbox.size());
  return stats;
}

}  // namespace moesaic
