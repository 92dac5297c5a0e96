#include "session.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "base/file_cache.h"
#include "base/seconds.h"
#include "chat/terminal.h"
#include "interrupt.h"
#include "model_options.h"
#include "print_json.h"
#include "progress.h"
#include "saved_chat.h"
#include "text/harmony_json.h"
#include "text/utf8.h"

namespace moesaic::app {
namespace {

using Clock = std::chrono::steady_clock;

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

// A file that is no conversation was not meant to be written over.
Status check_may_go(const std::string& path) {
  std::error_code code;
  if (std::filesystem::file_size(path, code) == 0 || code) return {};  // it is absent, empty or no file
  const auto there = read_whole(path, kMostSavedBytes);
  if (there.ok() && conversation_from_json(there.value(), path).ok()) return {};
  return invalid("{}: is there and is no saved conversation; give another name, or remove it", path);
}

Conversation new_conversation(const RunOptions& o) {
  Conversation c{.instructions = readable(o.system, "the instructions"),
                 .format = {.schema_json = o.schema},
                 .current_date = today()};
  c.reasoning_effort = effort_of(o.reasoning).value_or(ReasoningEffort::kMedium);
  return c;
}

// The reason that --device auto prints when it takes the CPU.
std::string why_no_gpu(const ModelInfo& info) {
  return info.device_reason.starts_with("no GPU") ? "; " + info.device_reason : "";
}

void print_timing(const Generation& g, const LoadedModel& m, const ModelInfo& info) {
  const int cached = g.outcome.cached_tokens, computed = g.outcome.prompt_tokens - cached;
  const std::string reused = cached > 0 ? fmt::format(" + {} kept", cached) : "";
  chat::notice(fmt::format(
      "[{}{} | loaded in {:.1f} s | context {} tokens ({}) | seed {} | prompt {}{} tokens, {:.1f} "
      "tok/s, first token after {:.2f} s | {} tokens, {:.1f} tok/s]",
      m.caps.name, why_no_gpu(info), m.load_seconds, info.context, info.context_reason, g.seed, computed,
      reused, g.prefill_s > 0 ? computed / g.prefill_s : 0, g.prefill_s, g.tokens.size(), g.tokens_per_s()));
}

// "reading the prompt: 12288 of 40112 tokens, 480 tok/s, 58 s left"
std::string reading_text(const PromptProgress& p, double seconds) {
  const double rate = seconds > 0 ? (p.read - p.cached) / seconds : 0;
  const std::string left =
      rate > 0 ? fmt::format(", {:.0f} tok/s, {:.0f} s left", rate, (p.tokens - p.read) / rate) : "";
  return fmt::format("reading the prompt: {} of {} tokens{}", p.read, p.tokens, left);
}

// In a terminal's conversation, which has said the rest at its beginning.
void print_speed(const Generation& g) {
  if (g.tokens.empty() && g.prompt.tokens > 0)
    return chat::notice(fmt::format("[stopped when {} of {} tokens of the prompt were read]", g.prompt.read,
                                    g.prompt.tokens));
  if (g.tokens.empty()) return chat::notice("[stopped before the first token]");
  const int cached = g.outcome.cached_tokens, computed = g.outcome.prompt_tokens - cached;
  chat::notice(fmt::format("[{} tokens, {:.1f} tok/s | prompt {}{} tokens, first token after {:.2f} s{}]",
                           g.tokens.size(), g.tokens_per_s(), computed,
                           cached > 0 ? fmt::format(" + {} kept", cached) : "", g.prefill_s,
                           g.outcome.finish == FinishReason::kCancelled ? " | stopped"
                           : g.outcome.finish == FinishReason::kLength  ? " | cut off: no more tokens"
                                                                        : ""));
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

void print_answer_json(const Generation& g, const LoadedModel& m, const ModelInfo& info) {
  const nlohmann::ordered_json json = {
      {"text", g.answer.text},
      {"reasoning", g.answer.reasoning},
      {"tool_calls", g.answer.tool_calls},
      {"tokens", g.tokens},
      {"finish_reason", finish_name(g)},
      {"seed", g.seed},
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
  print_json(json);
  std::fflush(stdout);
}

}  // namespace

double Generation::tokens_per_s() const {
  return decode_s > 0 && !tokens.empty() ? static_cast<double>(tokens.size() - 1) / decode_s : 0;
}

std::string readable(const std::string& text, const std::string& what) {
  const size_t valid = utf8_valid_prefix(text);
  if (valid == text.size()) return text;
  chat::notice(fmt::format("moesaic: note: byte {} of {} is not UTF-8; what is not is read as U+FFFD",
                           valid + 1, what));
  return utf8_lossy(text);
}

Result<std::string> prompt_text(const std::string& prompt) {
  if (prompt == "@") return invalid("-p @: give a file's name behind @, or @@ for a text that begins with @");
  if (prompt.starts_with("@@")) return prompt.substr(1);
  return prompt.starts_with('@') ? read_text_or_stdin(prompt.substr(1)) : prompt;
}

Session::Session(const RunOptions& o, const LoadedModel& loaded, Model model, AnswerGrammar grammar)
    : o_(o),
      loaded_(loaded),
      model_(std::move(model)),
      grammar_(std::move(grammar)),
      conversation_(new_conversation(o)) {}

Result<std::vector<int32_t>> Session::prompt_for(const std::string& message) {
  if (!o_.raw) {
    conversation_.messages.push_back({.role = "user", .text = message});
    return model_.chat_prompt(conversation_);
  }
  last_message_ = message;
  text_before_ = text_;
  ASSIGN_OR_RETURN(const std::vector<int32_t> more, model_.tokenize(message));
  std::vector<int32_t> prompt = text_;
  prompt.insert(prompt.end(), more.begin(), more.end());
  return prompt;
}

Result<Generation> Session::generate(std::vector<int32_t> prompt, bool terminal) {
  Listener listener{Printer({.enabled = o_.format == "text",
                             .show_reasoning = o_.show_reasoning,
                             .markdown = !o_.raw && !o_.plain && o_.schema.empty()})};
  std::stop_source cancel;
  Generation g;
  ProgressLine reading;
  const auto start = Clock::now();
  auto first = start;
  Callbacks callbacks{.on_token =
                          [&](const SampledToken& t) {
                            if (g.tokens.empty()) first = Clock::now(), reading.clear();
                            g.tokens.push_back(t.token);
                            g.stop_token = t.is_stop;
                          },
                      .on_text = [&](const TextPiece& piece) { listener.text(piece); },
                      .on_end = [&](const Outcome& outcome) { g.outcome = outcome; },
                      .on_prompt =
                          [&](const PromptProgress& progress) {
                            g.prompt = progress;
                            if (progress.read > progress.cached && progress.read < progress.tokens)
                              reading.show(reading_text(progress, seconds_since(start)));
                          }};
  GenerationRequest request{
      .prompt = std::move(prompt), .chat = !o_.raw, .sampling = o_.sampling, .grammar = grammar_};
  // Drawn ones have 32 bits: they are short to read and to type.
  g.seed = request.sampling.seed = o_.seed ? *o_.seed + tries_ : std::random_device()();
  RETURN_IF_ERROR(model_.submit(std::move(request), std::move(callbacks), cancel.get_token()));
  RETURN_IF_ERROR(finish_request(model_, g, cancel, terminal));
  reading.clear();
  g.prefill_s = seconds_between(start, first), g.decode_s = seconds_since(first);
  g.answer = listener.finish(g.outcome.messages);
  return g;
}

// Takes the user's last message out of the conversation.
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
  tries_ = 0;
  return answer(message, terminal);
}

Status Session::answer(const std::string& message, bool terminal) {
  auto built = prompt_for(readable(message, "the message"));
  if (!built.ok()) {
    forget_message();
    return built.status();
  }
  const std::vector<int32_t>& prompt = built.value();
  auto generated = generate(prompt, terminal);
  if (!generated.ok()) {
    forget_message();
    const bool full = std::ssize(prompt) >= model_.info().context;
    const bool alone = o_.raw ? text_.empty() : conversation_.messages.empty();
    if (full && terminal && !alone)
      return invalid("{}; /clear forgets what was said", generated.status().message());
    return generated.status();
  }
  const Generation& g = generated.value();
  remember(prompt, g);
  report(g, terminal);
  return g.outcome.finish == FinishReason::kCancelled && !terminal
             ? Status(StatusCode::kCancelled, "interrupted")
             : Status();
}

void Session::report(const Generation& g, bool terminal) const {
  if (o_.format == "json") return print_answer_json(g, loaded_, model_.info());
  if (terminal) return print_speed(g);
  if (g.answer.text.empty() && g.outcome.finish == FinishReason::kLength)
    chat::notice(
        "moesaic: note: the limit of tokens was reached before the answer began (-n, --ctx, --reasoning)");
  if (o_.verbose || isatty(STDERR_FILENO) != 0) print_timing(g, loaded_, model_.info());
}

Status Session::retry() {
  if (o_.raw) {
    if (last_message_.empty()) return invalid("there is no message yet");
    text_ = text_before_;
    ++tries_;
    return answer(std::string(last_message_), true);
  }
  auto& messages = conversation_.messages;
  size_t last = messages.size();
  while (last > 0 && messages[last - 1].role != "user") --last;
  if (last == 0) return invalid("there is no message yet");
  const std::vector<Message> before = messages;
  const std::string message = messages[last - 1].text;
  messages.resize(last - 1);
  ++tries_;
  Status status = answer(message, true);
  if (messages.size() < last) messages = before;  // there was no new answer
  return status;
}

void Session::clear() {
  conversation_.messages.clear();
  text_.clear();
  last_message_.clear();
}

Status Session::save(const std::string& path) const {
  if (o_.raw) return invalid("with --raw there are no messages to save");
  RETURN_IF_ERROR(check_may_go(path));
  return write_whole(path, json_of(conversation_), Readers::kOwner);
}

Status Session::load(const std::string& path) {
  if (o_.raw) return invalid("with --raw no messages can be loaded");
  ASSIGN_OR_RETURN(const std::string json, read_whole(path, kMostSavedBytes));
  ASSIGN_OR_RETURN(Conversation loaded, conversation_from_json(json, path));
  loaded.format = conversation_.format;
  loaded.current_date = conversation_.current_date;
  RETURN_IF_ERROR(model_.chat_prompt(loaded).status());
  conversation_ = std::move(loaded);
  tries_ = 0;
  return {};
}

std::string Session::describe() const {
  const ModelInfo info = model_.info();
  return fmt::format("{}{} | loaded in {:.1f} s | context {} tokens ({})", loaded_.caps.name,
                     why_no_gpu(info), loaded_.load_seconds, info.context, info.context_reason);
}

}  // namespace moesaic::app
