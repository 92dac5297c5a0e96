// run: one answer with -p, a conversation without.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "commands.h"
#include "engine/engine.h"
#include "engine/stop_filter.h"
#include "model_options.h"
#include "text/harmony_parser.h"
#include "tokenizer_source.h"

namespace moesaic::app {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  ModelOptions model;
  std::string prompt, system, reasoning = "medium", format = "text";
  SamplingParams sampling;
  int context = 0;
  bool raw = false, show_reasoning = false, has_prompt = false;
};

std::atomic<bool> interrupted{false};
void on_interrupt(int) { interrupted.store(true); }

struct Timing {
  double prefill_s = 0, decode_s = 0;
  int prompt_tokens = 0, generated = 0;
};

struct Answer {
  std::string text, reasoning;
  std::vector<Message> messages;  // harmony: what the model said, for the next turn
  nlohmann::ordered_json tool_calls = nlohmann::ordered_json::array();
  std::vector<int32_t> tokens;
  FinishReason finish = FinishReason::kNone;
  Timing timing;
};

const char* finish_name(const Answer& a) {
  if (!a.tool_calls.empty()) return "tool_calls";
  switch (a.finish) {
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    default:
      return "stop";
  }
}

// Shows text as it comes: answers on standard output, reasoning dimmed on standard error.
class Printer {
 public:
  explicit Printer(const Options& o)
      : enabled_(o.format == "text"), reasoning_(o.show_reasoning || isatty(STDERR_FILENO) != 0) {}

  void answer(const std::string& text) {
    end_reasoning();
    if (enabled_) fmt::print("{}", text), std::fflush(stdout);
  }
  void reasoning(const std::string& text) {
    if (!enabled_ || !reasoning_ || text.empty()) return;
    fmt::print(stderr, "{}{}", std::exchange(dimmed_, true) ? "" : "\x1b[2m", text);
  }
  void end_reasoning() {
    if (std::exchange(dimmed_, false)) fmt::print(stderr, "\x1b[0m\n");
  }

 private:
  bool enabled_, reasoning_, dimmed_ = false;
};

// Collects what one generation says, in harmony or as plain text.
class Listener {
 public:
  Listener(const Options& o, const Tokenizer& tokenizer)
      : raw_(o.raw), parser_(tokenizer), decoder_(tokenizer), stop_(o.sampling.stop_strings), printer_(o) {}

  // False: a stop string is complete.
  bool token(int32_t token, bool ends) {
    if (!raw_) {
      for (const HarmonyEvent& e : parser_.push(token)) handle(e);
    } else if (!ends) {
      show(stop_.push(decoder_.push(token)));
    }
    return !stop_.stopped();
  }
  Answer finish() {
    if (raw_) show(stop_.push(decoder_.flush()));
    if (!raw_) {
      for (const HarmonyEvent& e : parser_.finish()) handle(e);
    }
    show(stop_.flush());
    printer_.answer("\n");
    return std::move(answer_);
  }
  bool stopped() const { return stop_.stopped(); }

 private:
  void show(const std::string& text) {
    answer_.text += text;
    printer_.answer(text);
  }
  void handle(const HarmonyEvent& e) {
    if (e.kind == HarmonyEvent::Kind::kText && e.message.channel == "final") show(stop_.push(e.message.text));
    if (e.kind == HarmonyEvent::Kind::kText && e.message.channel == "analysis") {
      answer_.reasoning += e.message.text;
      printer_.reasoning(e.message.text);
    }
    if (e.kind == HarmonyEvent::Kind::kToolCall) {
      answer_.tool_calls.push_back({{"recipient", e.message.recipient}, {"arguments", e.message.text}});
    }
    if (e.kind == HarmonyEvent::Kind::kMessageEnd || e.kind == HarmonyEvent::Kind::kToolCall)
      answer_.messages.push_back(e.message);
  }

  bool raw_;
  HarmonyParser parser_;
  StreamDecoder decoder_;
  StopFilter stop_;
  Printer printer_;
  Answer answer_;
};

Result<Answer> generate(const Options& o, Engine& engine, const Tokenizer& tokenizer,
                        std::vector<int32_t> prompt) {
  Listener listener(o, tokenizer);
  SamplingParams params = o.sampling;
  params.stop_tokens = tokenizer.stop_tokens();
  const auto is_stop = [&](int32_t t) {
    return std::find(params.stop_tokens.begin(), params.stop_tokens.end(), t) != params.stop_tokens.end();
  };
  std::vector<int32_t> tokens;
  const auto start = Clock::now();
  auto first = start;
  const auto on_token = [&](const SampledToken& t) {
    if (tokens.empty()) first = Clock::now();
    tokens.push_back(t.token);
    return listener.token(t.token, is_stop(t.token)) && !interrupted.load();
  };
  ASSIGN_OR_RETURN(const auto request, engine.submit(std::move(prompt), params, on_token));
  RETURN_IF_ERROR(engine.run_to_end());
  RETURN_IF_ERROR(request->error);
  const auto seconds = [](auto a, auto b) { return std::chrono::duration<double>(b - a).count(); };
  Answer answer = listener.finish();
  answer.tokens = std::move(tokens);
  answer.finish = listener.stopped() ? FinishReason::kStop : request->finish;
  answer.timing = {seconds(start, first), seconds(first, Clock::now()), request->prompt_tokens,
                   static_cast<int>(answer.tokens.size())};
  return answer;
}

std::string today() { return fmt::format("{:%Y-%m-%d}", fmt::localtime(std::time(nullptr))); }

Conversation new_conversation(const Options& o) {
  Conversation c{.instructions = o.system, .current_date = today()};
  c.reasoning_effort = o.reasoning == "low"    ? ReasoningEffort::kLow
                       : o.reasoning == "high" ? ReasoningEffort::kHigh
                                               : ReasoningEffort::kMedium;
  return c;
}

Result<std::vector<int32_t>> prompt_tokens(const Options& o, const Conversation& conversation,
                                           const Tokenizer& tokenizer) {
  if (o.raw) return tokenizer.try_encode(conversation.messages.back().text, false);
  return render_conversation(conversation, tokenizer);
}

void print_timing(const Answer& a, const LoadedModel& m) {
  const Timing& t = a.timing;
  fmt::print(stderr,
             "[{} | loaded in {:.1f} s | prompt {} tokens, {:.1f} tok/s, first token after {:.2f} s | {} "
             "tokens, {:.1f} tok/s]\n",
             m.caps.name, m.load_seconds, t.prompt_tokens,
             t.prefill_s > 0 ? t.prompt_tokens / t.prefill_s : 0, t.prefill_s, t.generated,
             t.decode_s > 0 ? (t.generated - 1) / t.decode_s : 0);
}

void print_json(const Answer& a, const LoadedModel& m) {
  const Timing& t = a.timing;
  const nlohmann::ordered_json json = {
      {"text", a.text},
      {"reasoning", a.reasoning},
      {"tool_calls", a.tool_calls},
      {"tokens", a.tokens},
      {"finish_reason", finish_name(a)},
      {"usage",
       {{"prompt_tokens", t.prompt_tokens},
        {"completion_tokens", t.generated},
        {"total_tokens", t.prompt_tokens + t.generated}}},
      {"timing", {{"load_s", m.load_seconds}, {"prefill_s", t.prefill_s}, {"decode_s", t.decode_s}}}};
  fmt::print("{}\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

Status turn(const Options& o, Engine& engine, const Tokenizer& tokenizer, const LoadedModel& m,
            Conversation& conversation) {
  ASSIGN_OR_RETURN(std::vector<int32_t> prompt, prompt_tokens(o, conversation, tokenizer));
  ASSIGN_OR_RETURN(const Answer answer, generate(o, engine, tokenizer, std::move(prompt)));
  conversation.messages.insert(conversation.messages.end(), answer.messages.begin(), answer.messages.end());
  o.format == "json" ? print_json(answer, m) : print_timing(answer, m);
  return {};
}

Status chat(const Options& o, Engine& engine, const Tokenizer& tokenizer, const LoadedModel& m) {
  const bool terminal = isatty(STDIN_FILENO) != 0;
  if (terminal) fmt::print(stderr, "Type a message and press Enter; Ctrl-D ends.\n");
  Conversation conversation = new_conversation(o);
  for (std::string line; !interrupted.load();) {
    if (terminal) fmt::print(stderr, "> ");
    if (!std::getline(std::cin, line)) break;
    if (line.empty()) continue;
    conversation.messages.push_back({.role = "user", .text = line});
    RETURN_IF_ERROR(turn(o, engine, tokenizer, m, conversation));
  }
  return {};
}

Status run_run(const Options& o) {
  std::signal(SIGINT, on_interrupt);
  ASSIGN_OR_RETURN(LoadedModel m, load_model(o.model, 512));
  ASSIGN_OR_RETURN(const Tokenizer tokenizer, tokenizer_of(m.checkpoint));
  ASSIGN_OR_RETURN(Engine engine, Engine::create(*m.backend, m.checkpoint.config, {.context = o.context}));
  if (!o.has_prompt) return chat(o, engine, tokenizer, m);
  Conversation conversation = new_conversation(o);
  conversation.messages.push_back({.role = "user", .text = o.prompt});
  return turn(o, engine, tokenizer, m, conversation);
}

}  // namespace

Run add_run(CLI::App& app) {
  auto o = std::make_shared<Options>();
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
  c.add_option("--ctx", o->context, "tokens of context; 0: 8192 or the model's")->capture_default_str();
  c.add_option("--temp", o->sampling.temperature, "temperature; 0: greedy")->capture_default_str();
  c.add_option("--top-p", o->sampling.top_p, "nucleus sampling")->capture_default_str();
  c.add_option("--top-k", o->sampling.top_k, "likeliest tokens to keep; 0: all")->capture_default_str();
  c.add_option("--min-p", o->sampling.min_p, "least probability relative to the likeliest")
      ->capture_default_str();
  c.add_option("--seed", o->sampling.seed, "seed of the random numbers")->capture_default_str();
  c.add_option("--repetition-penalty", o->sampling.repetition_penalty,
               "above 1 discourages tokens seen before")
      ->capture_default_str();
  c.add_option("--presence-penalty", o->sampling.presence_penalty,
               "subtracted once for a token generated before")
      ->capture_default_str();
  c.add_option("--frequency-penalty", o->sampling.frequency_penalty, "subtracted for each time")
      ->capture_default_str();
  c.add_option("--stop", o->sampling.stop_strings, "text that ends the answer (may be given several times)");
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
