#include "engine.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <set>
#include <utility>

#include "base/error.h"
#include "engine/sampler.h"
#include "openai/chat_request.h"
#include "openai/completion_request.h"

namespace moesaic::python {
namespace {

constexpr const char* kClosed = "the engine has been closed";

struct OpenEngines {
  std::mutex mutex;
  std::set<Engine*> engines;
};
OpenEngines& open_engines() {
  static OpenEngines& one = *new OpenEngines;  // for threads that outlive main()
  return one;
}

// Tokens get the log-probabilities of the row that they are sampled from, which comes before each.
void add_all_logprobs(Callbacks& callbacks) {
  const auto row = std::make_shared<std::vector<float>>();
  callbacks.on_logits = [row](int /*position*/, std::span<const float> logits) {
    row->assign(logits.begin(), logits.end());
  };
  callbacks.on_token = [row, on_token = std::move(callbacks.on_token)](const SampledToken& token) {
    SampledToken whole = token;
    whole.logprobs = logprobs_of(*row, token.token, static_cast<int>(row->size()));
    on_token(whole);
  };
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::open(const std::string& path, const OpenOptions& options) {
  ASSIGN_OR_RETURN(Model model, Model::open(path, options));
  RETURN_IF_ERROR(model.start());
  return std::unique_ptr<Engine>(new Engine(std::make_shared<Model>(std::move(model))));
}

Engine::Engine(std::shared_ptr<Model> model) : name_(model->info().name), model_(std::move(model)) {
  const std::lock_guard lock(open_engines().mutex);
  open_engines().engines.insert(this);
}

Engine::~Engine() {
  close();
  const std::lock_guard lock(open_engines().mutex);
  open_engines().engines.erase(this);
}

void Engine::close_all() noexcept {
  const std::lock_guard lock(open_engines().mutex);
  for (Engine* engine : open_engines().engines) engine->close();
}

void Engine::close() {
  if (!process_.here()) return;
  std::shared_ptr<Model> model;
  std::vector<std::weak_ptr<Stream>> streams;
  {
    const std::lock_guard lock(mutex_);
    model = std::exchange(model_, nullptr);
    streams.swap(streams_);
  }
  if (model == nullptr) return;
  [[maybe_unused]] const Status stopped = model->stop();
  for (const auto& weak : streams) {
    if (const auto stream = weak.lock()) stream->fail(error(StatusCode::kCancelled, "{}", kClosed));
  }
}

Result<std::shared_ptr<Model>> Engine::model() const {
  RETURN_IF_ERROR(process_.check());
  const std::lock_guard lock(mutex_);
  if (model_ == nullptr) return invalid("{}", kClosed);
  return model_;
}

void Engine::watch(const std::shared_ptr<Stream>& stream) {
  const std::lock_guard lock(mutex_);
  std::erase_if(streams_, [&](const auto& weak) { return weak.expired() || weak.lock() == stream; });
  streams_.push_back(stream);
}

std::variant<std::vector<Tokens>, openai::ApiError> Engine::submit(Endpoint endpoint, std::string_view body,
                                                                   const Extras& extras,
                                                                   const std::shared_ptr<Stream>& stream,
                                                                   int first) {
  const Result<std::shared_ptr<Model>> model = this->model();
  if (!model.ok()) return openai::api_error(model.status());
  const openai::Service service{.model = *model.value(),
                                .name = name_,
                                .today = fmt::format("{:%Y-%m-%d}", fmt::localtime(std::time(nullptr))),
                                .max_choices = kMostChoices,
                                .strict_fields = true,
                                .grammars = &grammars_,
                                .larger_context = "open the model with a larger context"};
  auto made = endpoint == Endpoint::kChat ? openai::prepare_chat(body, service)
                                          : openai::prepare_completion(body, service);
  if (auto* refusal = std::get_if<openai::ApiError>(&made)) return *refusal;
  watch(stream);
  std::vector<Tokens> prompts;
  for (GenerationRequest& request : std::get<openai::PreparedRequest>(made).requests) {
    const int index = first + static_cast<int>(prompts.size());
    prompts.push_back(request.prompt);
    request.sampling.prompt_logprobs = extras.prompt_logprobs;
    Callbacks callbacks = Stream::add(stream, index);
    if (extras.all_logprobs) add_all_logprobs(callbacks);
    const Status status =
        model.value()->submit(std::move(request), std::move(callbacks), stream->stop_token(index));
    if (status.ok()) continue;
    stream->forget(index);
    for (int i = first; i < index; ++i) stream->cancel(i);
    return openai::api_error(status);
  }
  end_if_closed(stream);
  return prompts;
}

// A request that came while close() was at work.
void Engine::end_if_closed(const std::shared_ptr<Stream>& stream) const {
  const Result<std::shared_ptr<Model>> model = this->model();
  if (!model.ok()) stream->fail(model.status());
}

Status Engine::start_logits(Tokens tokens, bool all, const std::shared_ptr<Stream>& stream,
                            const std::shared_ptr<Logits>& logits) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Model> model, this->model());
  watch(stream);
  Callbacks callbacks = Stream::add(stream, 0);
  callbacks.on_logits = [logits](int /*position*/, std::span<const float> row) {
    logits->vocab = row.size();
    ++logits->rows;
    logits->values.insert(logits->values.end(), row.begin(), row.end());
  };
  GenerationRequest request{.prompt = std::move(tokens),
                            .sampling = {.temperature = 0, .max_tokens = 1},
                            .prompt_logits = all,
                            .speculate = false};
  RETURN_IF_ERROR(model->submit(std::move(request), std::move(callbacks), stream->stop_token(0)));
  end_if_closed(stream);
  return {};
}

}  // namespace moesaic::python
