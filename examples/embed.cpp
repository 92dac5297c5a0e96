// Each thing that moesaic offers to a program that embeds it, once:  example_embed [MODEL]
// Prints what it did, and fails where something is not as documented: ctest runs it with the bundled model.
#include <moesaic/engine.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace {

using moesaic::Callbacks;
using moesaic::GenerationRequest;
using moesaic::Model;
using moesaic::Outcome;
using moesaic::SampledToken;

void expect(bool true_here, const char* what) {
  if (true_here) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::exit(1);
}

template <typename T>
T value_of(moesaic::Result<T> result) {
  if (!result.ok()) std::fprintf(stderr, "%s\n", result.status().message().c_str());
  expect(result.ok(), "it works");
  return std::move(result).value();
}

void list_devices() {
  std::printf("moesaic %s\n", std::string(moesaic::version()).c_str());
  expect(moesaic::version_number() == MOESAIC_VERSION_NUMBER, "library and headers are of one version");
  for (const moesaic::DeviceInfo& d : moesaic::list_devices()) {
    if (d.usable)
      std::printf("%s: %s %s\n", d.name.c_str(), d.description.c_str(), d.architecture.c_str());
    else
      std::printf("%s: %s\n", d.name.c_str(), d.reason.c_str());
  }
}

Model open(const std::string& path) {
  moesaic::OpenOptions options{.context = 1024, .max_batch = 4};
  options.progress = [](int64_t, int64_t) { return false; };
  expect(Model::open(path, options).status().code() == moesaic::StatusCode::kCancelled,
         "loading is cancelled");
  options.progress = [](int64_t done, int64_t total) {
    std::printf("%lld of %lld bytes\n", static_cast<long long>(done), static_cast<long long>(total));
    return true;
  };
  return value_of(Model::open(path, options));
}

GenerationRequest request(const std::vector<int32_t>& prompt, int tokens) {
  return {.prompt = prompt, .chat = true, .sampling = {.temperature = 0, .max_tokens = tokens}};
}

// Several threads ask while the model's own works.
void ask_from_threads(Model& model, const std::vector<int32_t>& prompt) {
  std::atomic<int> ends = 0;
  expect(model.start().ok(), "the model's thread starts");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      std::stop_source cancel;
      const Callbacks callbacks{.on_token = {}, .on_text = {}, .on_end = [&](const Outcome&) { ++ends; }};
      expect(model.submit(request(prompt, 30), callbacks, cancel.get_token()).ok(), "any thread submits");
      if (i == 0) cancel.request_stop();
    });
  }
  for (std::thread& t : threads) t.join();
  expect(model.wait().ok() && model.stop().ok() && ends == 4, "all ended");
}

// Prints the model's probabilities of its prompt and of each next token.
void score(Model& model, const std::vector<int32_t>& prompt) {
  double sum = 0;
  size_t seen = 0, rows = 0, tops = 0;
  Callbacks callbacks{.on_token = [&](const SampledToken& t) { tops += t.logprobs.top.size(); },
                      .on_text = {},
                      .on_end = [](const Outcome&) {}};
  callbacks.on_prompt_token = [&](const SampledToken& t) {
    sum += t.logprobs.logprob;
    ++seen;
  };
  callbacks.on_logits = [&](int, std::span<const float> logits) {
    rows += logits.size() == static_cast<size_t>(model.vocab()) ? 1 : 0;
  };
  GenerationRequest r = request(prompt, 3);
  r.sampling.top_logprobs = 5;
  r.sampling.prompt_logprobs = 0;
  r.prompt_logits = true;
  expect(model.submit(r, callbacks).ok() && model.run().ok(), "it is scored");
  expect(seen == prompt.size() && rows == prompt.size() + 2 && tops == 15, "every position was seen");
  std::printf("perplexity of the prompt: %.2f\n", std::exp(-sum / static_cast<double>(seen - 1)));
}

int cached_of(Model& model, const std::vector<int32_t>& prompt) {
  int cached = 0;
  const Callbacks callbacks{
      .on_token = {}, .on_text = {}, .on_end = [&](const Outcome& o) { cached = o.cached_tokens; }};
  expect(model.submit(request(prompt, 1), callbacks).ok() && model.run().ok(), "a request runs");
  return cached;
}

// A prompt that was computed once, for another model of the same weights; and requests that fork from it.
void keep(Model& model, const std::string& path, const std::vector<int32_t>& prompt) {
  const std::string bytes = value_of(model.save_kv(prompt));
  Model other = value_of(Model::open(path, {.context = 1024}));
  expect(value_of(other.cached_prefix(prompt)) == 0, "nothing is there yet");
  const size_t loaded = value_of(other.load_kv(bytes)).size();
  expect(loaded > 0 && static_cast<size_t>(cached_of(other, prompt)) == loaded, "the prompt is found");
  expect(!other.load_kv(bytes.substr(1)).ok(), "what is damaged is refused");
  std::vector<int32_t> fork = prompt;
  fork.push_back(prompt.back());
  expect(static_cast<size_t>(cached_of(other, fork)) >= loaded, "a fork shares its pages");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string path = argc > 1 ? argv[1] : "tiny";
  std::atomic<int> lines = 0;
  moesaic::set_log_callback([&](moesaic::LogLevel, std::string_view) { ++lines; });
  list_devices();
  Model model = open(path);
  const moesaic::ModelInfo info = model.info();
  std::printf("%s on %s (%s), context %d: %s\n", info.name.c_str(), info.device.name.c_str(),
              info.device_reason.c_str(), info.context, info.context_reason.c_str());
  const std::string wrong = Model::open(path, {.context = -1}).status().message();
  expect(wrong.find("options.context") != std::string::npos, "errors name the option");
  const std::vector<int32_t> prompt =
      value_of(model.chat_prompt(R"([{"role": "user", "content": "What is 17 + 25?"}])"));
  ask_from_threads(model, prompt);
  score(model, prompt);
  keep(model, path, prompt);
  moesaic::set_log_callback({});
  expect(lines > 0, "something was said");
  return 0;
}
