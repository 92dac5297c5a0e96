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

#include "api/model_parts.h"
#include "base/error.h"
#include "commands.h"
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
  std::string speculative = OpenOptions{}.speculative;
  int context = 0, draft_tokens = 0;
  bool raw = false, show_reasoning = false, has_prompt = false;
};

struct Generation {
  AnswerText answer;
  Outcome outcome;
  std::vector<int32_t> tokens;  // the stop token that ended them included
  bool stop_token = false;      // there is one
  double prefill_s = 0, decode_s = 0;
};

const char* finish_name(const Generation& g) {
  if (g.outcome.finish == FinishReason::kCancelled) return "cancelled";
  if (g.outcome.finish == FinishReason::kLength) return "length";
  return g.answer.tool_calls.empty() ? "stop" : "tool_calls";
}

// Steps the model until the request ends. Ctrl-C cancels it: in a terminal's conversation at any time, else
// from the first token on, as there is nothing to keep before.
Status finish_request(Model& model, const Generation& g, std::stop_source& cancel, bool conversation) {
  std::optional<InterruptScope> interrupt;
  while (!model.idle()) {
    if (!interrupt && (conversation || !g.tokens.empty())) interrupt.emplace();
    RETURN_IF_ERROR(model.step());
    if (interrupt && interrupt->requested()) cancel.request_stop();
  }
  return g.outcome.error;
}

std::string today() { return fmt::format("{:%Y-%m-%d}", fmt::localtime(std::time(nullptr))); }

Conversation new_conversation(const RunOptions& o) {
  Conversation c{.instructions = o.system, .format = {.schema_json = o.schema}, .current_date = today()};
  c.reasoning_effort = o.reasoning == "low"    ? ReasoningEffort::kLow
                       : o.reasoning == "high" ? ReasoningEffort::kHigh
                                               : ReasoningEffort::kMedium;
  return c;
}

// What --device auto says where it takes the CPU.
std::string why_no_gpu(const ModelInfo& info) {
  return info.device_reason.starts_with("no GPU") ? "; " + info.device_reason : "";
}

void print_timing(const Generation& g, const LoadedModel& m, const ModelInfo& info) {
  const auto generated = static_cast<double>(g.tokens.size());
  const int cached = g.outcome.cached_tokens, computed = g.outcome.prompt_tokens - cached;
  const std::string reused = cached > 0 ? fmt::format(" + {} kept", cached) : "";
  fmt::print(stderr,
             "[{}{} | loaded in {:.1f} s | context {} tokens ({}) | prompt {}{} tokens, {:.1f} tok/s, first "
             "token after {:.2f} s | {} "
             "tokens, {:.1f} tok/s]\n",
             m.caps.name, why_no_gpu(info), m.load_seconds, info.context, info.context_reason, computed,
             reused, g.prefill_s > 0 ? computed / g.prefill_s : 0, g.prefill_s, g.tokens.size(),
             g.decode_s > 0 && generated > 0 ? (generated - 1) / g.decode_s : 0);
}

nlohmann::ordered_json speculation_json(const Generation& g, const ModelInfo& info) {
  const SpeculationStats& s = g.outcome.speculation;
  std::vector<uint64_t> by_position(s.accepted_at.begin(), s.accepted_at.end());
  while (!by_position.empty() && by_position.back() == 0) by_position.pop_back();
  return {{"drafter", info.speculative},
          {"drafts", s.drafts},
          {"drafted", s.drafted},
          {"accepted", s.accepted},
          {"accepted_by_position", by_position},
          {"steps", g.tokens.size() - s.accepted}};
}

void print_json(const Generation& g, const LoadedModel& m, const ModelInfo& info) {
  const nlohmann::ordered_json json = {
      {"text", g.answer.text},
      {"reasoning", g.answer.reasoning},
      {"tool_calls", g.answer.tool_calls},
      {"tokens", g.tokens},
      {"finish_reason", finish_name(g)},
      {"usage",
       {{"prompt_tokens", g.outcome.prompt_tokens},
        {"completion_tokens", g.tokens.size()},
        {"total_tokens", g.outcome.prompt_tokens + g.tokens.size()},
        {"reused_tokens", g.outcome.cached_tokens}}},
      {"device", {{"name", info.device.name}, {"reason", info.device_reason}}},
      {"context", {{"tokens", info.context}, {"reason", info.context_reason}}},
      {"timing",
       {{"load_s", m.load_seconds},
        {"prefill_s", g.prefill_s},
        {"decode_s", g.decode_s},
        {"speculative", speculation_json(g, info)}}}};
  fmt::print("{}\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  std::fflush(stdout);
}

// A conversation, or one prompt.
class Session {
 public:
  Session(const RunOptions& o, const LoadedModel& loaded, Model model, AnswerGrammar grammar)
      : o_(o),
        loaded_(loaded),
        model_(std::move(model)),
        grammar_(std::move(grammar)),
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
  const LoadedModel& loaded_;
  Model model_;
  AnswerGrammar grammar_;
  Conversation conversation_;
  std::vector<int32_t> text_;  // --raw: everything so far
};

Result<std::vector<int32_t>> Session::prompt_for(const std::string& message) {
  if (!o_.raw) {
    conversation_.messages.push_back({.role = "user", .text = message});
    return model_.chat_prompt(conversation_);
  }
  ASSIGN_OR_RETURN(const std::vector<int32_t> more, model_.tokenize(message));
  std::vector<int32_t> prompt = text_;
  prompt.insert(prompt.end(), more.begin(), more.end());
  return prompt;
}

Result<Generation> Session::generate(std::vector<int32_t> prompt, bool terminal) {
  Listener listener{Printer(o_.format == "text", o_.show_reasoning)};
  std::stop_source cancel;
  Generation g;
  const auto start = Clock::now();
  auto first = start;
  Callbacks callbacks{.on_token =
                          [&](const SampledToken& t) {
                            if (g.tokens.empty()) first = Clock::now();
                            g.tokens.push_back(t.token);
                            g.stop_token = t.is_stop;
                          },
                      .on_text = [&](const TextPiece& piece) { listener.text(piece); },
                      .on_end = [&](const Outcome& outcome) { g.outcome = outcome; }};
  GenerationRequest request{
      .prompt = std::move(prompt), .chat = !o_.raw, .sampling = o_.sampling, .grammar = grammar_};
  RETURN_IF_ERROR(model_.submit(std::move(request), std::move(callbacks), cancel.get_token()));
  RETURN_IF_ERROR(finish_request(model_, g, cancel, terminal));
  const auto seconds = [](auto a, auto b) { return std::chrono::duration<double>(b - a).count(); };
  g.prefill_s = seconds(start, first), g.decode_s = seconds(first, Clock::now());
  g.answer = listener.finish(g.outcome.messages);
  return g;
}

// As if the user's last message had not been said.
void Session::forget_message() {
  if (!o_.raw) conversation_.messages.pop_back();
}

void Session::remember(const std::vector<int32_t>& prompt, const Generation& g) {
  if (g.tokens.empty()) return forget_message();  // interrupted before it began
  conversation_.messages.insert(conversation_.messages.end(), g.outcome.messages.begin(),
                                g.outcome.messages.end());
  text_ = prompt;
  text_.insert(text_.end(), g.tokens.begin(), g.tokens.end() - (g.stop_token ? 1 : 0));
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
  o_.format == "json" ? print_json(g, loaded_, model_.info()) : print_timing(g, loaded_, model_.info());
  return g.outcome.finish == FinishReason::kCancelled && !terminal
             ? Status(StatusCode::kCancelled, "interrupted")
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
  o.schema = text::compact_json(parsed);  // as the prompt has it
  for (const std::string& note : grammar->notes()) fmt::print(stderr, "{}: {}\n", o.schema_path, note);
  return grammar;
}

// Takes the backend out of what prepare_model made.
Result<Model> load_model(const RunOptions& o, LoadedModel& m) {
  ASSIGN_OR_RETURN(Tokenizer tokenizer, tokenizer_of(m.checkpoint));
  const EngineOptions options{.context = o.context,
                              .max_rows = kMaxRows,
                              .prefix_cache = !o.has_prompt,
                              .draft_tokens = o.draft_tokens};
  ASSIGN_OR_RETURN(const DeviceChoice choice, device_choice(o.model, kMaxRows));
  ASSIGN_OR_RETURN(DraftParts drafts, DraftParts::open(o.speculative, m.checkpoint));
  ASSIGN_OR_RETURN(EnginePlan plan, plan_engine(m.checkpoint, options, choice, m.backend, &drafts));
  RETURN_IF_ERROR(load(m, plan.demand));
  RETURN_IF_ERROR(drafts.load(*m.backend, m.checkpoint));
  RETURN_IF_ERROR(fit_again(plan, m.checkpoint.config, *m.backend));
  ASSIGN_OR_RETURN(auto drafter, drafts.drafter(*m.backend, plan.options));
  ASSIGN_OR_RETURN(Engine engine,
                   Engine::create(*m.backend, m.checkpoint.config, plan.options, std::move(drafter)));
  return make_model({.config = m.checkpoint.config,
                     .backend = std::move(m.backend),
                     .tokenizer = std::move(tokenizer),
                     .engine = std::move(engine),
                     .info = plan.info});
}

Status run_run(RunOptions o) {
  RETURN_IF_ERROR(usage(validate(o.sampling, INT_MAX)));
  ASSIGN_OR_RETURN(AnswerGrammar grammar, grammar_of(o));
  ASSIGN_OR_RETURN(LoadedModel loaded, prepare_model(o.model, kMaxRows));
  RETURN_IF_ERROR(check_context(o.context, loaded.checkpoint.config, "--ctx"));
  ASSIGN_OR_RETURN(Model model, load_model(o, loaded));
  Session session(o, loaded, std::move(model), std::move(grammar));
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
  c.add_flag("--raw", o->raw, "continue the prompt as plain text, without the chat format");
  c.add_flag("--show-reasoning", o->show_reasoning,
             "print the analysis channel to standard error even if that is not a terminal");
  c.add_option("-n,--max-tokens", o->sampling.max_tokens,
               "most tokens to generate; 0: until the context is full")
      ->capture_default_str();
  c.add_option("--ctx", o->context,
               "context length in tokens; 0: the model's maximum, or as many as fit into the memory")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  add_speculation_options(c, *o);
  c.add_option("--temp", o->sampling.temperature, "temperature; 0: greedy")->capture_default_str();
  c.add_option("--top-p", o->sampling.top_p, "nucleus sampling")->capture_default_str();
  c.add_option("--top-k", o->sampling.top_k, "keep only the k most likely tokens; 0: all")
      ->capture_default_str();
  c.add_option("--min-p", o->sampling.min_p,
               "drop tokens below this share of the most likely token's probability")
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
  c.add_option("--frequency-penalty", o->sampling.frequency_penalty,
               "subtracted for each time a token was generated before")
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
