// The extension module moesaic._engine. Python's lock is released in everything that can take time.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <new>
#include <optional>

#include "base/error.h"
#include "convert.h"
#include "engine.h"
#include "gil.h"
#include "ops.h"
#include "program.h"
#include "stream.h"

namespace moesaic::python {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kSignalPeriod{50};  // how often a wait looks for Ctrl-C

// Runs what may take long without Python's lock.
template <typename Body>
auto unlocked(Body&& body) {
  const Unlocked release;
  return body();
}

void raise_on_signal() {
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

// --- Opening ---

// Keeps what a progress function or a signal raised while the model was being opened.
class Progress {
 public:
  explicit Progress(nb::object call) : call_(std::move(call)) {}
  // From the thread that opens, without Python's lock.
  bool operator()(int64_t done, int64_t total) {
    const Locked acquire;
    try {
      raise_on_signal();
      return call_.is_none() || !call_(done, total).is(nb::bool_(false));
    } catch (nb::python_error& raised) {
      raised_.emplace(std::move(raised));
      return false;
    }
  }
  void rethrow() {
    if (raised_) throw nb::python_error(std::move(*raised_));
  }

 private:
  nb::object call_;
  std::optional<nb::python_error> raised_;
};

// Python's handle of an engine. Its end may wait for a step in flight, and frees the weights.
struct EngineOwner {
  explicit EngineOwner(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}
  EngineOwner(const EngineOwner&) = delete;
  EngineOwner& operator=(const EngineOwner&) = delete;
  ~EngineOwner() {
    unlocked([this] { engine_.reset(); });
  }
  Engine* operator->() const { return engine_.get(); }
  std::shared_ptr<Model> model() const { return checked(engine_->model()); }

 private:
  std::unique_ptr<Engine> engine_;
};

// model: a path's bytes, which need not be UTF-8.
std::unique_ptr<EngineOwner> open_engine(const nb::bytes& model, nb::object progress,
                                         const nb::kwargs& kwargs) {
  const std::string path(model.c_str(), model.size());
  OpenOptions options = options_of(kwargs);
  Progress watch(std::move(progress));
  options.progress = [&](int64_t done, int64_t total) { return watch(done, total); };
  auto engine = unlocked([&] { return Engine::open(path, options); });
  watch.rethrow();
  return std::make_unique<EngineOwner>(checked(std::move(engine)));
}

// --- Requests ---

// Python's handle of a stream. The engine's thread holds the stream itself, and so never lets go of a Python
// object, for which it would need Python's lock.
struct StreamOwner {
  explicit StreamOwner(bool only_ends) : stream_(std::make_shared<Stream>(only_ends)) {}
  StreamOwner(const StreamOwner&) = delete;
  StreamOwner& operator=(const StreamOwner&) = delete;
  // A forked process leaves it as it is: its lock may be taken for ever.
  ~StreamOwner() {
    cancel_all();
    if (!process_.here()) new (std::nothrow) std::shared_ptr<Stream>(stream_);
  }
  // In a forked process there is nothing to end.
  void cancel_all() const {
    if (process_.here()) stream_->cancel_all();
  }
  // Fails in a forked process.
  const std::shared_ptr<Stream>& stream() const {
    check(process_.check());
    return stream_;
  }

 private:
  OwnProcess process_;
  const std::shared_ptr<Stream> stream_;
};

std::vector<Tokens> submit(const EngineOwner& engine, const std::string& endpoint, const std::string& body,
                           const StreamOwner& owner, int first, int prompt_logprobs, bool all_logprobs) {
  if (endpoint != "chat" && endpoint != "completions")
    throw nb::value_error("endpoint: 'chat' or 'completions'");
  const Endpoint kind = endpoint == "chat" ? Endpoint::kChat : Endpoint::kCompletions;
  auto made = unlocked([&] {
    return engine->submit(kind, body, {prompt_logprobs, all_logprobs}, owner.stream(), first);
  });
  if (const auto* refusal = std::get_if<openai::ApiError>(&made)) throw Failure(*refusal);
  return std::get<std::vector<Tokens>>(std::move(made));
}

std::vector<Delta> take(Stream& stream, double seconds) {
  constexpr double kMostSeconds = 1e6;
  const double bounded = seconds < kMostSeconds ? std::max(seconds, 0.0) : kMostSeconds;  // NaN: the most
  const auto until =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(bounded));
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(until - Clock::now());
    const bool ready =
        unlocked([&] { return stream.wait(std::clamp(left, milliseconds(0), kSignalPeriod)); });
    raise_on_signal();
    if (ready || left <= kSignalPeriod) return unlocked([&] { return stream.take(); });
  }
}

using Array = nb::ndarray<nb::numpy, float, nb::ndim<2>, nb::c_contig>;

Array logits(const EngineOwner& engine, const Tokens& tokens, bool all) {
  const auto stream = std::make_shared<Stream>(true);
  const auto rows = std::make_shared<Logits>();
  check(unlocked([&] { return engine->start_logits(tokens, all, stream, rows); }));
  std::vector<Delta> deltas;
  try {
    while (deltas.empty()) deltas = take(*stream, 1e6);
  } catch (...) {
    stream->cancel_all();
    throw;
  }
  check(deltas[0].end->error);
  const nb::capsule owner(new std::shared_ptr<Logits>(rows),
                          [](void* p) noexcept { delete static_cast<std::shared_ptr<Logits>*>(p); });
  return Array(rows->values.data(), {rows->rows, rows->vocab}, owner);
}

std::string detokenize(const Model& model, const Tokens& tokens) {
  for (const int32_t token : tokens) {
    if (token < 0 || token >= model.vocab())
      check(invalid("token {} is outside the vocabulary of {}", token, model.vocab()));
  }
  return model.detokenize(tokens);
}

// arguments: bytes, which need not be UTF-8.
int run_main(const std::vector<nb::bytes>& arguments) {
  std::vector<std::string> words;
  for (const nb::bytes& word : arguments) words.emplace_back(word.c_str(), word.size());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return unlocked([&] { return app::run_program(static_cast<int>(words.size()), argv.data()); });
}

// --- What Python sees ---

const char* name_of(FinishReason reason) {
  constexpr const char* kNames[] = {"none", "stop", "length", "abort", "error"};
  return kNames[static_cast<int>(reason)];
}

nb::object error_of(const Outcome& outcome) {
  if (outcome.error.ok()) return nb::none();
  return nb::cast(outcome.error.message());
}

void add_values(nb::module_& m) {
  nb::class_<SampledToken>(m, "Token", "A token of an answer, or of a prompt with prompt_logprobs.")
      .def_ro("token", &SampledToken::token, "The token's id.")
      .def_ro("is_stop", &SampledToken::is_stop, "It ends the text and is not part of it.")
      .def_prop_ro(
          "logprob", [](const SampledToken& t) { return t.logprobs.logprob; },
          "Natural logarithm of its probability, before temperature and filters; 0 where none was asked for.")
      .def_prop_ro(
          "top", [](const SampledToken& t) { return t.logprobs.top; },
          "The likeliest tokens and their log-probabilities, likeliest first.");
  nb::class_<TextPiece>(m, "Piece", "What tokens added to an answer's text.")
      .def_ro("channel", &TextPiece::channel, "Chat: analysis, commentary or final; else empty.")
      .def_ro("recipient", &TextPiece::recipient,
              "Chat: of a tool call, such as functions.get_weather; else empty.")
      .def_ro("text", &TextPiece::text)
      .def_ro("begins", &TextPiece::begins, "Chat: the first part of a message.");
  nb::class_<Outcome>(m, "Outcome", "How a request ended.")
      .def_prop_ro(
          "finish", [](const Outcome& o) { return name_of(o.finish); }, "stop, length, abort or error.")
      .def_prop_ro("error", &error_of, nb::sig("def error(self) -> str | None"),
                   "One line with finish == 'error'.")
      .def_ro("prompt_tokens", &Outcome::prompt_tokens)
      .def_ro("generated_tokens", &Outcome::generated_tokens, "The token that ended the text included.")
      .def_ro("cached_tokens", &Outcome::cached_tokens,
              "Of the prompt's, those that had been computed before.")
      .def_ro("stop_string", &Outcome::stop_string, "The one that ended it; empty: none did.");
}

// Python's time.monotonic() is the same clock.
double seconds(Clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

void add_stream(nb::module_& m) {
  nb::class_<Delta>(m, "Delta", "What one request gave since it was last taken.")
      .def_ro("index", &Delta::index)
      .def_ro("prompt_tokens", &Delta::prompt_tokens)
      .def_ro("tokens", &Delta::tokens, "The token that ends the text included.")
      .def_ro("pieces", &Delta::pieces)
      .def_prop_ro(
          "end", [](const Delta& d) { return d.end ? nb::cast(*d.end) : nb::none(); },
          nb::sig("def end(self) -> Outcome | None"), "The request's last delta has it.")
      .def_prop_ro(
          "begun", [](const Delta& d) { return seconds(d.begun); },
          "When its work began, in seconds of time.monotonic(); 0: not yet.")
      .def_prop_ro(
          "first_token", [](const Delta& d) { return seconds(d.first_token); }, "When its first token came.")
      .def_prop_ro(
          "latest_token", [](const Delta& d) { return seconds(d.latest_token); },
          "When its latest token came.");
  nb::class_<StreamOwner>(m, "Stream", "Collects what requests give; they end with it. Thread-safe.")
      .def(nb::init<bool>(), nb::arg("only_ends") = false,
           "only_ends: a request is reported once, when it has ended.")
      .def(
          "take", [](const StreamOwner& o, double timeout) { return take(*o.stream(), timeout); },
          nb::arg("timeout") = 0.0,
          "What has come, a delta for each request; waits at most `timeout` seconds for it, without "
          "Python's lock. "
          "Ctrl-C raises KeyboardInterrupt.")
      .def(
          "fileno", [](const StreamOwner& o) { return checked(o.stream()->fd()); },
          "An eventfd that is readable while take() has something to give.")
      .def(
          "cancel", [](const StreamOwner& o, int index) { o.stream()->cancel(index); }, nb::arg("index"),
          "The request ends with finish == 'abort'.")
      .def("cancel_all", &StreamOwner::cancel_all)
      .def_prop_ro(
          "open", [](const StreamOwner& o) { return o.stream()->open(); },
          "Requests whose end has not been taken.");
}

void add_engine(nb::module_& m) {
  nb::class_<EngineOwner>(m, "Engine", "An opened model with a thread of its own that steps. Thread-safe.")
      .def("submit", &submit, nb::arg("endpoint"), nb::arg("body"), nb::arg("stream"), nb::arg("first") = 0,
           nb::arg("prompt_logprobs") = -1, nb::arg("all_logprobs") = false,
           "Queues the generations of a request, JSON as the server's 'chat' or 'completions' endpoint takes "
           "it; their "
           "indices in `stream` are first, first + 1, .. Returns each one's prompt, in tokens.")
      .def("logits", &logits, nb::arg("tokens"), nb::arg("all"),
           nb::sig("def logits(self, tokens: list[int], all: bool) -> numpy.typing.NDArray[numpy.float32]"),
           "[rows, vocab] float32: what follows each token (all), or the last one.")
      .def(
          "close", [](const EngineOwner& e) { unlocked([&] { e->close(); }); },
          "Ends every request and frees the model.")
      .def(
          "tokenize",
          [](const EngineOwner& e, const std::string& text, bool special) {
            return checked(unlocked([&] { return e.model()->tokenize(text, special); }));
          },
          nb::arg("text"), nb::arg("special") = false,
          "special: names such as <|start|> become special tokens instead of text.")
      .def(
          "detokenize",
          [](const EngineOwner& e, const Tokens& tokens) {
            const std::string bytes = unlocked([&] { return detokenize(*e.model(), tokens); });
            return nb::bytes(bytes.data(), bytes.size());
          },
          nb::arg("tokens"), "The tokens' bytes, not always valid UTF-8.")
      .def(
          "chat_prompt",
          [](const EngineOwner& e, const std::string& json) {
            return checked(unlocked([&] { return e.model()->chat_prompt(json); }));
          },
          nb::arg("conversation"),
          "JSON of messages, or of {messages, tools, reasoning_effort, ..}, as tokens.")
      .def(
          "info", [](const EngineOwner& e) { return describe(e.model()->info()); },
          nb::sig("def info(self) -> dict[str, typing.Any]"), "ModelInfo of include/moesaic/engine.h.")
      .def(
          "stats", [](const EngineOwner& e) { return describe(e.model()->stats()); },
          nb::sig("def stats(self) -> dict[str, typing.Any]"), "EngineStats of include/moesaic/stats.h.")
      .def_prop_ro("vocab", [](const EngineOwner& e) { return e.model()->vocab(); })
      .def_prop_ro("stop_tokens", [](const EngineOwner& e) { return e.model()->stop_tokens(); });
}

}  // namespace
}  // namespace moesaic::python

NB_MODULE(_engine, m) {
  using namespace moesaic::python;
  // nanobind has just made its types those of this interpreter, in the whole process.
  static nb::detail::nb_internals* of_main = nullptr;
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
    nb::detail::internals = of_main;
    throw nb::import_error("moesaic works in a process's main interpreter only");
  }
  of_main = nb::detail::internals;
  // A daemon thread keeps what it uses until the process ends: nothing to warn of.
  nb::set_leak_warnings(false);
  Py_AtExit([] { Engine::close_all(); });
  m.doc() = "moesaic's engine. moesaic.LLM and moesaic.AsyncLLM are what to use.";
  translate_failures();
  add_values(m);
  add_stream(m);
  add_engine(m);
  add_ops(m);
  m.def("open_engine", &open_engine, nb::arg("model"), nb::arg("progress").none(), nb::arg("options"),
        nb::sig("def open_engine(model: bytes, progress: typing.Callable[[int, int], bool | None] | None, "
                "**options: typing.Any) -> Engine"),
        "model: as moesaic.LLM has it. options: by the names of OpenOptions (include/moesaic/engine.h). "
        "progress is called with bytes done and bytes in all while weights are loaded; False ends it.");
  m.def("run_main", &run_main, nb::arg("arguments"),
        "Runs the program with these arguments, the first being its name; returns the exit status.");
  m.def(
      "list_devices",
      [] {
        nb::list devices;
        for (const auto& device : unlocked([] { return moesaic::list_devices(); }))
          devices.append(describe(device));
        return devices;
      },
      nb::sig("def list_devices() -> list[dict[str, typing.Any]]"),
      "DeviceInfo of include/moesaic/device.h.");
  m.attr("version") = std::string(moesaic::version());
  m.attr("most_choices") = moesaic::python::kMostChoices;
}
