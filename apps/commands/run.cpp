// run: one answer with -p, a conversation without.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "commands.h"
#include "engine/engine.h"
#include "grammar/mask_cache.h"
#include "interrupt.h"
#include "listener.h"
#include "model_options.h"
#include "text/limited_json.h"
#include "tokenizer_source.h"

namespace moesaic::app {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxRows = 512;  // of a step

struct RunOptions {
  ModelOptions model;
  std::string prompt, system, reasoning = "medium", format = "text", schema_path, schema;
  SamplingParams sampling;
  int context = 0;
  bool raw = false, show_reasoning = false, has_prompt = false;
};

struct Generation {
  Answer answer;
  std::vector<int32_t> tokens;  // the stop token that ended them included
  FinishReason finish = FinishReason::kNone;
  int prompt_tokens = 0, reused_tokens = 0;  // reused: of the prompt, computed in earlier turns
  double prefill_s = 0, decode_s = 0;
};

const char* finish_name(const Generation& g) {
  if (g.finish == FinishReason::kCancelled) return "cancelled";
  if (g.finish == FinishReason::kLength) return "length";
  return g.answer.tool_calls.empty() ? "stop" : "tool_calls";
}

// Steps the engine until the request ends. Ctrl-C cancels it: in a terminal's conversation at any time, else
// from the first token on, as there is nothing to keep before.
Status finish_request(Engine& engine, Request& request, std::stop_source& cancel, bool conversation) {
  std::optional<InterruptScope> interrupt;
  while (!engine.idle()) {
    if (!interrupt && (conversation || request.generated() > 0)) interrupt.emplace();
    RETURN_IF_ERROR(engine.step());
    if (interrupt && interrupt->requested()) cancel.request_stop();
  }
  return request.error;
}

std::string today() { return fmt::format("{:%Y-%m-%d}", fmt::localtime(std::time(nullptr))); }

Conversation new_conversation(const RunOptions& o) {
  Conversation c{.instructions = o.system, .format = {.schema_json = o.schema}, .current_date = today()};
  c.reasoning_effort = o.reasoning == "low"    ? ReasoningEffort::kLow
                       : o.reasoning == "high" ? ReasoningEffort::kHigh
                                               : ReasoningEffort::kMedium;
  return c;
}

void print_timing(const Generation& g, const LoadedModel& m) {
  const auto generated = static_cast<double>(g.tokens.size());
  const int computed = g.prompt_tokens - g.reused_tokens;
  const std::string reused = g.reused_tokens > 0 ? fmt::format(" + {} kept", g.reused_tokens) : "";
  fmt::print(stderr,
             "[{} | loaded in {:.1f} s | prompt {}{} tokens, {:.1f} tok/s, first token after {:.2f} s | {} "
             "tokens, {:.1f} tok/s]\n",
             m.caps.name, m.load_seconds, computed, reused, g.prefill_s > 0 ? computed / g.prefill_s : 0,
             g.prefill_s, g.tokens.size(),
             g.decode_s > 0 && generated > 0 ? (generated - 1) / g.decode_s : 0);
}

void print_json(const Generation& g, const LoadedModel& m) {
  const nlohmann::ordered_json json = {
      {"text", g.answer.text},
      {"reasoning", g.answer.reasoning},
      {"tool_calls", g.answer.tool_calls},
      {"tokens", g.tokens},
      {"finish_reason", finish_name(g)},
      {"usage",
       {{"prompt_tokens", g.prompt_tokens},
        {"completion_tokens", g.tokens.size()},
        {"total_tokens", g.prompt_tokens + g.tokens.size()},
        {"reused_tokens", g.reused_tokens}}},
      {"timing", {{"load_s", m.load_seconds}, {"prefill_s", g.prefill_s}, {"decode_s", g.decode_s}}}};
  fmt::print("{}\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  std::fflush(stdout);
}

// What has been said so far, and the parts that say more.
class Session {
 public:
  Session(const RunOptions& o, const LoadedModel& m, const Tokenizer& tokenizer, Engine engine,
          AnswerGrammar grammar)
      : o_(o),
        m_(m),
        tokenizer_(tokenizer),
        engine_(std::move(engine)),
        grammar_(std::move(grammar)),
        masks_(tokenizer),
        conversation_(new_conversation(o)) {}

  // The answer to one message, printed. kCancelled after Ctrl-C, except in a terminal's conversation, which
  // goes on.
  Status turn(const std::string& message, bool terminal = false);

 private:
  Result<std::vector<int32_t>> prompt_for(const std::string& message);
  Result<Generation> generate(std::vector<int32_t> prompt, bool terminal);
  void forget_message();
  void remember(const std::vector<int32_t>& prompt, const Generation& g);

  const RunOptions& o_;
  const LoadedModel& m_;
  const Tokenizer& tokenizer_;
  Engine engine_;
  AnswerGrammar grammar_;
  grammar::MaskCache masks_;
  Conversation conversation_;
  std::vector<int32_t> text_;  // --raw: everything so far
};

Result<std::vector<int32_t>> Session::prompt_for(const std::string& message) {
  if (!o_.raw) {
    conversation_.messages.push_back({.role = "user", .text = message});
    return render_conversation(conversation_, tokenizer_);
  }
  ASSIGN_OR_RETURN(const std::vector<int32_t> more, tokenizer_.try_encode(message, false));
  std::vector<int32_t> prompt = text_;
  prompt.insert(prompt.end(), more.begin(), more.end());
  return prompt;
}

Result<Generation> Session::generate(std::vector<int32_t> prompt, bool terminal) {
  SamplingParams params = o_.sampling;
  params.stop_tokens = tokenizer_.stop_tokens();
  Listener listener(AnswerStream(tokenizer_, !o_.raw, o_.sampling.stop_strings),
                    Printer(o_.format == "text", o_.show_reasoning));
  std::stop_source cancel;
  Generation g;
  const auto start = Clock::now();
  auto first = start;
  const auto on_token = [&](const SampledToken& t) {
    if (g.tokens.empty()) first = Clock::now();
    g.tokens.push_back(t.token);
    if (!listener.token(t.token, t.is_stop)) cancel.request_stop();
  };
  ASSIGN_OR_RETURN(const auto request,
                   engine_.submit(std::move(prompt), params, on_token, cancel.get_token()));
  if (!grammar_.empty()) request->sampler->follow(masks_.async_matcher(grammar_));
  RETURN_IF_ERROR(finish_request(engine_, *request, cancel, terminal));
  const auto seconds = [](auto a, auto b) { return std::chrono::duration<double>(b - a).count(); };
  g.prefill_s = seconds(start, first), g.decode_s = seconds(first, Clock::now());
  g.answer = listener.finish();
  g.finish = listener.stopped() ? FinishReason::kStop : request->finish;
  g.prompt_tokens = request->prompt_tokens, g.reused_tokens = request->reused;
  return g;
}

// As if the user's last message had not been said.
void Session::forget_message() {
  if (!o_.raw) conversation_.messages.pop_back();
}

void Session::remember(const std::vector<int32_t>& prompt, const Generation& g) {
  if (g.tokens.empty()) return forget_message();  // interrupted before it began
  conversation_.messages.insert(conversation_.messages.end(), g.answer.messages.begin(),
                                g.answer.messages.end());
  text_ = prompt;
  const std::vector<int32_t> stops = tokenizer_.stop_tokens();
  for (const int32_t t : g.tokens) {
    if (std::find(stops.begin(), stops.end(), t) == stops.end()) text_.push_back(t);
  }
}

Status Session::turn(const std::string& message, bool terminal) {
  ASSIGN_OR_RETURN(const std::vector<int32_t> prompt, prompt_for(message));
  auto generated = generate(prompt, terminal);
  if (!generated.ok()) {
    forget_message();
    return generated.status();
  }
  const Generation& g = generated.value();
  remember(prompt, g);
  o_.format == "json" ? print_json(g, m_) : print_timing(g, m_);
  return g.finish == FinishReason::kCancelled && !terminal ? Status(StatusCode::kCancelled, "interrupted")
                                                           : Status();
}

Status chat(Session& session) {
  const bool terminal = isatty(STDIN_FILENO) != 0;
  if (terminal) fmt::print(stderr, "Type a message and press Enter; Ctrl-C stops an answer, Ctrl-D ends.\n");
  for (std::string line;;) {
    if (terminal) fmt::print(stderr, "> ");
    if (!std::getline(std::cin, line)) return {};
    if (line.empty()) continue;
    const Status status = session.turn(line, terminal);
    // A message that is too long is no reason to lose the conversation.
    if (!terminal || status.code() != StatusCode::kInvalidArgument) RETURN_IF_ERROR(status);
    if (!status.ok()) fmt::print(stderr, "moesaic: {}\n", status.message());
  }
}

// Of --json-schema; what it does not enforce is said once.
Result<AnswerGrammar> grammar_of(RunOptions& o) {
  if (o.schema_path.empty()) return AnswerGrammar();
  ASSIGN_OR_RETURN(o.schema, text::read_text_file(o.schema_path));
  auto grammar = AnswerGrammar::compile({.chat = !o.raw, .json_schema = o.schema});
  if (!grammar.ok()) return invalid("{}: {}", o.schema_path, grammar.status().message());
  ASSIGN_OR_RETURN(const text::OrderedJson parsed, text::parse_ordered_json(o.schema, o.schema_path));
  o.schema = text::compact_json(parsed);  // as the model is told it
  for (const std::string& note : grammar->notes()) fmt::print(stderr, "{}: {}\n", o.schema_path, note);
  return grammar;
}

Status run_run(RunOptions o) {
  RETURN_IF_ERROR(usage(validate(o.sampling, INT_MAX)));
  ASSIGN_OR_RETURN(AnswerGrammar grammar, grammar_of(o));
  ASSIGN_OR_RETURN(LoadedModel m, prepare_model(o.model, kMaxRows));
  RETURN_IF_ERROR(check_context(o.context, m.checkpoint.config, "--ctx"));
  ASSIGN_OR_RETURN(const Tokenizer tokenizer, tokenizer_of(m.checkpoint));
  const EngineOptions options{.context = o.context, .max_rows = kMaxRows, .prefix_cache = !o.has_prompt};
  ASSIGN_OR_RETURN(const KvDemand demand, Engine::demand(m.checkpoint.config, options));
  RETURN_IF_ERROR(load(m, demand));
  ASSIGN_OR_RETURN(Engine engine, Engine::create(*m.backend, m.checkpoint.config, options));
  Session session(o, m, tokenizer, std::move(engine), std::move(grammar));
  return o.has_prompt ? session.turn(o.prompt) : chat(session);
}

}  // namespace

Run add_run(CLI::App& app) {
  auto o = std::make_shared<RunOptions>();
  CLI::App& c = *app.add_subcommand("run", "Answer a prompt, or hold a conversation when there is none");
  o->model.add_to(c);
  CLI::Option* prompt = c.add_option("-p,--prompt", o->prompt,
                                     "the user's message; without it lines are read from standard input");
  c.add_option("--system", o->system, "instructions (harmony's developer message)");
  c.add_option("--reasoning", o->reasoning, "effort: low, medium or high")
      ->check(CLI::IsMember({"low", "medium", "high"}))
      ->capture_default_str();
  c.add_flag("--raw", o->raw, "continue the text as it stands, without the chat format");
  c.add_flag("--show-reasoning", o->show_reasoning,
             "print the analysis channel to standard error even if that is no terminal");
  c.add_option("-n,--max-tokens", o->sampling.max_tokens,
               "tokens to generate at most; 0: until the context is full")
      ->capture_default_str();
  c.add_option("--ctx", o->context, "tokens of context; 0: 8192 or the model's")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  c.add_option("--temp", o->sampling.temperature, "temperature; 0: greedy")->capture_default_str();
  c.add_option("--top-p", o->sampling.top_p, "nucleus sampling")->capture_default_str();
  c.add_option("--top-k", o->sampling.top_k, "likeliest tokens to keep; 0: all")->capture_default_str();
  c.add_option("--min-p", o->sampling.min_p, "least probability relative to the likeliest")
      ->capture_default_str();
  c.add_option("--seed", o->sampling.seed, "seed of the random numbers")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  c.add_option("--repetition-penalty", o->sampling.repetition_penalty,
               "above 1 discourages tokens seen before")
      ->capture_default_str();
  c.add_option("--presence-penalty", o->sampling.presence_penalty,
               "subtracted once for a token generated before")
      ->capture_default_str();
  c.add_option("--frequency-penalty", o->sampling.frequency_penalty, "subtracted for each time")
      ->capture_default_str();
  c.add_option("--stop", o->sampling.stop_strings, "text that ends the answer (may be given several times)");
  c.add_option("--json-schema", o->schema_path,
               "file with a JSON schema that the answer must follow ({} allows any JSON)");
  c.add_option("-o,--output", o->format, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  c.footer(
      "Examples:\n  moesaic run -m gpt-oss-20b -p \"Why is the sky blue?\" --reasoning low\n  moesaic run -m "
      "gpt-oss-20b            (a conversation)\n  moesaic run -m gpt-oss-20b --raw -p \"Once upon a time\" "
      "-n 50 --temp 0");
  return [o, prompt] {
    o->has_prompt = prompt->count() > 0;
    return run_run(*o);
  };
}

}  // namespace moesaic::app
