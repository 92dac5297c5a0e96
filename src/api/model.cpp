#include <algorithm>
#include <deque>
#include <memory>
#include <new>

#include "api/answer_stream.h"
#include "api/model_parts.h"
#include "api/tokenizer_source.h"
#include "base/error.h"
#include "base/file_cache.h"
#include "base/linked_stop.h"
#include "grammar/mask_cache.h"
#include "moesaic/engine.h"
#include "text/harmony_json.h"

namespace moesaic {
namespace {

// A request on its way.
struct Active {
  Active(const Tokenizer& tokenizer, const GenerationRequest& r, Callbacks c, std::stop_token cancel)
      : stream(tokenizer, r.chat, r.sampling.stop_strings,
               {.min_tokens = r.sampling.min_tokens,
                .include_stop = r.sampling.include_stop,
                .skip_special = r.sampling.skip_special}),
        callbacks(std::move(c)),
        stop(std::move(cancel)) {}

  std::shared_ptr<Request> request;
  AnswerStream stream;
  Callbacks callbacks;
  LinkedStop stop;  // by the caller, or at the end of a stop string
  int generated = 0;

  void show(const std::vector<TextPiece>& pieces) const {
    if (!callbacks.on_text) return;
    for (const TextPiece& piece : pieces) callbacks.on_text(piece);
  }
  void take(const SampledToken& sampled) {
    ++generated;
    if (callbacks.on_token) callbacks.on_token(sampled);
    show(stream.push(sampled.token, sampled.is_stop));
    if (stream.stopped()) stop.request_stop();
  }
  void end() {
    stream.finish();
    callbacks.on_end({.finish = stream.stopped() ? FinishReason::kStop : request->finish,
                      .error = request->error,
                      .prompt_tokens = request->prompt_tokens,
                      .generated_tokens = generated,
                      .cached_tokens = request->reused,
                      .cache_write_tokens = request->kept,
                      .recoveries = stream.recoveries(),
                      .messages = stream.messages()});
  }
};

// Library code below may throw this; the API does not.
template <typename Body>
auto guarded(Body&& body) -> decltype(body()) try {
  return body();
} catch (const std::bad_alloc&) {
  return error(StatusCode::kOutOfMemory, "out of memory");
}

}  // namespace

struct Model::Impl : ModelParts {
  explicit Impl(ModelParts parts) : ModelParts(std::move(parts)) {}

  grammar::MaskCache masks{tokenizer};
  std::deque<std::shared_ptr<Active>> active;

  Status submit(GenerationRequest r, Callbacks callbacks, std::stop_token cancel);
  Status step();
};

Status Model::Impl::submit(GenerationRequest r, Callbacks callbacks, std::stop_token cancel) {
  if (!callbacks.on_end) return invalid("a request without on_end");
  if (!r.grammar.empty() && r.grammar.chat() != r.chat)
    return invalid("the grammar was made for {}",
                   r.chat ? "plain text, not a chat" : "a chat, not plain text");
  if (r.sampling.stop_tokens.empty() || !r.grammar.empty()) {
    const std::vector<int32_t> own = tokenizer.stop_tokens();
    r.sampling.stop_tokens.insert(r.sampling.stop_tokens.end(), own.begin(), own.end());
  }
  auto request = std::make_shared<Active>(tokenizer, r, std::move(callbacks), std::move(cancel));
  // The engine's request, which owns the callback, is owned by `request`: no cycle.
  const auto on_token = [a = std::weak_ptr(request)](const SampledToken& t) { a.lock()->take(t); };
  ASSIGN_OR_RETURN(request->request,
                   engine.submit(std::move(r.prompt), r.sampling, on_token, request->stop.token()));
  request->request->reuse_prefix = r.reuse_prefix;
  if (!r.grammar.empty()) request->request->sampler->follow(masks.async_matcher(r.grammar));
  active.push_back(std::move(request));
  return {};
}

Status Model::Impl::step() {
  Status status = engine.step();
  // on_end may submit: what has ended is taken out before its on_end.
  std::deque<std::shared_ptr<Active>> ended;
  std::copy_if(active.begin(), active.end(), std::back_inserter(ended),
               [](const auto& a) { return a->request->done(); });
  std::erase_if(active, [](const auto& a) { return a->request->done(); });
  for (const auto& a : ended) a->end();
  return status;
}

Status load_weights(const Checkpoint& checkpoint, const KvDemand& cache, Backend& backend,
                    const LoadProgress& progress) {
  RETURN_IF_ERROR(plan_memory(cache, checkpoint.config, checkpoint.weights, backend));
  Status loaded = backend.load(checkpoint.config, checkpoint.weights, progress);
  // First, since weights that are not there may look damaged in other ways.
  if (checkpoint.weights.intact) RETURN_IF_ERROR(checkpoint.weights.intact());
  return loaded;
}

Model make_model(ModelParts parts) { return Model(std::make_unique<Model::Impl>(std::move(parts))); }

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

Result<Model> Model::open(const std::string& path, const OpenOptions& o) {
  return guarded([&]() -> Result<Model> {
    ASSIGN_OR_RETURN(const std::optional<Format> dense, dense_format(o.dense));
    ASSIGN_OR_RETURN(const KvFormat kv, kv_format(o.kv_dtype));
    ASSIGN_OR_RETURN(const MoePath experts, moe_path(o.moe_path));
    if (o.cpu_pin != "auto" && o.cpu_pin != "off")
      return invalid("cpu_pin '{}'; it is auto or off", o.cpu_pin);
    ASSIGN_OR_RETURN(auto backend, create_backend(o.device, {.threads = o.threads,
                                                             .cpu_pin = o.cpu_pin == "auto",
                                                             .dense = dense,
                                                             .moe_path = experts,
                                                             .kv = kv,
                                                             .max_rows = o.max_rows,
                                                             .batch_invariant = o.batch_invariant,
                                                             .tuning_folder = cache_folder(),
                                                             .cpu_prefetch = o.cpu_prefetch}));
    ASSIGN_OR_RETURN(const Checkpoint checkpoint, open_checkpoint(path));
    ASSIGN_OR_RETURN(Tokenizer tokenizer,
                     o.tokenizer.empty() ? tokenizer_of(checkpoint) : tokenizer_file(o.tokenizer));
    EngineOptions options{.context = o.context,
                          .max_batch = o.max_batch,
                          .max_rows = o.max_rows,
                          .kv_tokens = o.kv_tokens,
                          .prefix_cache = o.prefix_cache};
    ASSIGN_OR_RETURN(KvDemand demand, Engine::demand(checkpoint.config, options));
    if (o.kv_tokens == 0)
      demand.kv_tokens = fitting_kv_tokens(demand, checkpoint.config, checkpoint.weights, *backend);
    options.kv_tokens = demand.kv_tokens;
    RETURN_IF_ERROR(load_weights(checkpoint, demand, *backend));
    ASSIGN_OR_RETURN(Engine engine, Engine::create(*backend, checkpoint.config, options));
    return make_model({.config = checkpoint.config,
                       .backend = std::move(backend),
                       .tokenizer = std::move(tokenizer),
                       .engine = std::move(engine)});
  });
}

int Model::context() const { return impl_->engine.context(); }
int Model::vocab() const { return impl_->config.vocab; }
std::vector<int32_t> Model::stop_tokens() const { return impl_->tokenizer.stop_tokens(); }

Result<std::vector<int32_t>> Model::tokenize(std::string_view text, bool special,
                                             const TokenLimit& limit) const {
  return guarded([&] { return impl_->tokenizer.try_encode(text, special, limit); });
}

std::string Model::detokenize(std::span<const int32_t> tokens) const {
  return impl_->tokenizer.decode(tokens);
}

Result<std::vector<int32_t>> Model::chat_prompt(std::string_view conversation_json,
                                                const TokenLimit& limit) const {
  return guarded([&]() -> Result<std::vector<int32_t>> {
    ASSIGN_OR_RETURN(const Conversation conversation,
                     conversation_from_json(conversation_json, "conversation"));
    return render_conversation(conversation, impl_->tokenizer, limit);
  });
}

Result<std::vector<int32_t>> Model::chat_prompt(const Conversation& conversation,
                                                const TokenLimit& limit) const {
  return guarded([&] { return render_conversation(conversation, impl_->tokenizer, limit); });
}

Status Model::submit(GenerationRequest request, Callbacks callbacks, std::stop_token cancel) {
  return guarded([&] { return impl_->submit(std::move(request), std::move(callbacks), std::move(cancel)); });
}

bool Model::idle() const { return impl_->engine.idle(); }

Status Model::step() {
  return guarded([&] { return impl_->step(); });
}

Status Model::run() {
  while (!idle()) RETURN_IF_ERROR(step());
  return {};
}

EngineStats Model::stats() const { return impl_->engine.stats(); }

}  // namespace moesaic
