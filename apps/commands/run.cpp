// run: one answer to a prompt, a conversation without one.
#include "run.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <utility>

#include "api/choose_ranks.h"
#include "api/fingerprint.h"
#include "api/model_parts.h"
#include "api/tokenizer_source.h"
#include "base/error.h"
#include "base/strings.h"
#include "chat/terminal.h"
#include "chat_loop.h"
#include "commands.h"
#include "get_model.h"
#include "help.h"
#include "model_options.h"
#include "option_checks.h"
#include "session.h"
#include "text/harmony.h"
#include "text/limited_json.h"
#include "text/utf8.h"

namespace moesaic::app {
namespace {

constexpr const char *kAnswerOptions = "Prompt and answer", *kSamplingOptions = "Sampling",
                     *kOutputOptions = "Output";

// The grammar of --json-schema. The parts of the schema that it does not enforce are named once.
Result<AnswerGrammar> grammar_of(RunOptions& o) {
  if (o.schema_path.empty()) return AnswerGrammar();
  if (trimmed(o.schema_path, " \t\r\n").starts_with('{')) {
    o.schema = std::exchange(o.schema_path, "--json-schema");
  } else {
    ASSIGN_OR_RETURN(o.schema, read_text_file(o.schema_path));
  }
  auto grammar = AnswerGrammar::compile({.chat = !o.raw, .json_schema = o.schema});
  if (!grammar.ok()) return invalid("{}: {}", o.schema_path, grammar.status().message());
  ASSIGN_OR_RETURN(const text::OrderedJson parsed, text::parse_exact_json(o.schema, o.schema_path));
  o.schema = text::compact_json(parsed);  // as the prompt has it
  for (const std::string& note : grammar->notes()) chat::notice(fmt::format("{}: {}", o.schema_path, note));
  return grammar;
}

// Takes the backend out of what prepare_model made.
Result<Model> load_model(const RunOptions& o, LoadedModel& m) {
  ASSIGN_OR_RETURN(Tokenizer tokenizer, tokenizer_for(m.checkpoint, o.tokenizer));
  if (!o.raw) RETURN_IF_ERROR(render_conversation({}, tokenizer).status());  // it has harmony's tokens
  ASSIGN_OR_RETURN(const KvStoreOptions kept, kv_store_options(o.kv_host, o.kv_disk));
  const EngineOptions options{.context = o.context,
                              .max_rows = 0,
                              .prefix_cache = !o.has_prompt || kept.any(),
                              .draft_tokens = o.draft_tokens};
  ASSIGN_OR_RETURN(DraftParts drafts, DraftParts::open(o.speculative, m.checkpoint));
  ASSIGN_OR_RETURN(EnginePlan plan, plan_engine(m.checkpoint, options, m.choice, m.backend, &drafts));
  ASSIGN_OR_RETURN(KvTiers tiers, KvTiers::open(kept));
  RETURN_IF_ERROR(load(m, plan.demand));
  RETURN_IF_ERROR(drafts.load(*m.backend, m.checkpoint));
  RETURN_IF_ERROR(fit_again(plan, m.checkpoint, *m.backend));
  ASSIGN_OR_RETURN(auto drafter, drafts.drafter(*m.backend, plan.options));
  ASSIGN_OR_RETURN(Engine engine,
                   Engine::create(*m.backend, m.checkpoint.config, plan.options, std::move(drafter)));
  if (kept.any()) {
    const std::string arithmetic =
        kv_arithmetic(o.model.dense, o.model.moe_path, o.model.batch_invariant, *m.backend);
    RETURN_IF_ERROR(engine.keep(std::move(tiers), fingerprint(m.checkpoint, arithmetic)));
  }
  return make_model({.config = m.checkpoint.config,
                     .backend = std::move(m.backend),
                     .tokenizer = std::move(tokenizer),
                     .engine = std::move(engine),
                     .info = plan.info});
}

// The text of a pipe or file on standard input. A pipe that a parent process left open would stall the
// program, so that its first byte must come soon.
Result<std::string> piped_text() {
  const int mode = fcntl(STDIN_FILENO, F_GETFL);  // nohup's is open for writing alone
  if (isatty(STDIN_FILENO) != 0 || (mode & O_ACCMODE) == O_WRONLY) return std::string();
  constexpr int kPatience = 5;  // s
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  if (poll(&input, 1, kPatience * 1000) != 0) return read_text_or_stdin("-");
  chat::notice(fmt::format("moesaic: note: standard input is left out: it is open, but nothing came for {} s",
                           kPatience));
  return std::string();
}

// The prompt, and behind it what stands on standard input.
Result<std::string> prompt_of(const RunOptions& o) {
  if (!o.has_prompt) return std::string();
  if (!o.file.empty()) return read_text_or_stdin(o.file);
  ASSIGN_OR_RETURN(const std::string prompt, prompt_text(o.prompt));
  ASSIGN_OR_RETURN(const std::string piped, piped_text());
  if (piped.empty()) return prompt;
  chat::notice(fmt::format("moesaic: note: {} bytes of standard input go behind the prompt", piped.size()));
  return prompt + "\n\n" + piped;
}

// The words that are no options: the model, unless -m names it, and the prompt.
Status take_words(RunOptions& o, std::vector<std::string> words, bool model_given) {
  for (const std::string& word : o.words) words.push_back(word.substr(1));
  if (!model_given) {
    if (words.empty())
      return usage(invalid("--model is required: moesaic run MODEL [PROMPT...] (see moesaic run --help)"));
    o.model.model = words[0];
    words.erase(words.begin());
  }
  if (words.empty()) return {};
  const std::string prompt = fmt::format("{}", fmt::join(words, " "));
  if (o.has_prompt) return usage(invalid("'{}' stands beside -p or -f; give one prompt", prompt));
  o.prompt = prompt.starts_with('@') ? "@" + prompt : prompt;  // words name no file
  o.has_prompt = true;
  return {};
}

// Errors of validate() begin with a field's name: top_p.
Status by_flags(const Status& status) {
  constexpr std::string_view kFields[] = {
      "temperature",      "top_p", "top_k", "min_p", "max_tokens", "repetition_penalty", "presence_penalty",
      "frequency_penalty"};
  const std::string& what = status.message();
  const std::string field = what.substr(0, what.find(' '));
  if (!is_one_of(kFields, field)) return status;
  std::string flag = field == kFields[0] ? "temp" : field;
  std::ranges::replace(flag, '_', '-');
  return Status(status.code(), "--" + flag + what.substr(field.size()));
}

}  // namespace

Status run_run(RunOptions o) {
  RETURN_IF_ERROR(usage(by_flags(validate(o.sampling, INT_MAX))));
  for (const std::string& stop : o.sampling.stop_strings) {
    if (utf8_valid_prefix(stop) != stop.size()) return usage(invalid("--stop: a text is not UTF-8"));
  }
  ASSIGN_OR_RETURN(AnswerGrammar grammar, grammar_of(o));
  ASSIGN_OR_RETURN(const std::string prompt, prompt_of(o));
  RETURN_IF_ERROR(offer_to_get(o.model.model));
  o.model.context = o.context;
  o.model.one_rank = one_rank_reason(o.speculative);
  ASSIGN_OR_RETURN(LoadedModel loaded, prepare_model(o.model, 0));
  RETURN_IF_ERROR(check_context(o.context, loaded.checkpoint.config, "--ctx"));
  ASSIGN_OR_RETURN(Model model, load_model(o, loaded));
  Session session(o, loaded, std::move(model), std::move(grammar));
  return o.has_prompt ? session.turn(prompt) : chat(session);
}

namespace {

void add_sampling_options(CLI::App& c, RunOptions& o) {
  SamplingParams& sampling = o.sampling;
  c.add_option("--temp", sampling.temperature, "temperature; 0: greedy")->group(kSamplingOptions);
  c.add_option("--top-p", sampling.top_p, "nucleus sampling")->group(kSamplingOptions);
  c.add_option("--top-k", sampling.top_k, "keep only the k most likely tokens; 0: all")
      ->group(kSamplingOptions);
  c.add_option("--min-p", sampling.min_p,
               "drop tokens below this share of the most likely token's probability")
      ->group(kSamplingOptions);
  c.add_option_function<std::string>(
       "--seed", [&o](const std::string& text) { o.seed = number_of<uint64_t>(text); },
       "seed; -1: one is drawn for each answer")
      ->type_name("INT")
      ->default_str("-1")
      ->check(in_range(uint64_t{0}, UINT64_MAX, "-1"))
      ->group(kSamplingOptions);
  c.add_option("--repetition-penalty", sampling.repetition_penalty, "above 1 discourages tokens seen before")
      ->group(kRareOptions);
  c.add_option("--presence-penalty", sampling.presence_penalty,
               "subtracted once for a token generated before")
      ->group(kRareOptions);
  c.add_option("--frequency-penalty", sampling.frequency_penalty,
               "subtracted for each time a token was generated before")
      ->group(kRareOptions);
}

// The named positionals are for the help alone: CLI11 would take "[a,b]" in a list of words for a list of its
// own, so words are left over, and take_words() has them.
void add_words(CLI::App& c, RunOptions& o) {
  c.allow_extras();
  c.add_option("MODEL", CLI::callback_t(), "as -m has it, where that is absent")->expected(0, 1);
  c.add_option("PROMPT...", CLI::callback_t(), "the user's message, in words")->expected(0, 1);
  c.add_option(std::string(kWordOption), o.words, "a word behind --")->allow_extra_args(false)->group("");
}

void add_output_options(CLI::App& c, RunOptions& o) {
  c.add_flag("--show-reasoning", o.show_reasoning,
             "print the reasoning to standard error even if that is no terminal")
      ->group(kOutputOptions);
  c.add_flag("--plain", o.plain, "show an answer's Markdown as it is, also on a terminal")
      ->group(kOutputOptions);
  c.add_flag("-v,--verbose", o.verbose, "print the speed to standard error even if that is no terminal")
      ->group(kOutputOptions);
  c.add_option("-o,--output", o.format, "text or json")
      ->check(one_of({"text", "json"}))
      ->group(kOutputOptions);
}

}  // namespace

Run add_run(CLI::App& app) {
  auto o = std::make_shared<RunOptions>();
  CLI::App& c = *app.add_subcommand("run", "Answer a prompt, or hold a conversation when there is none");
  o->model.add_to(c, "-m,--model");
  const CLI::Option* model = c.get_option("--model")->required(false);
  add_words(c, *o);
  CLI::Option* prompt =
      c.add_option("-p,--prompt", o->prompt, "the user's message, or @FILE with it (@@ for a first @)")
          ->group(kAnswerOptions);
  CLI::Option* file =
      c.add_option("-f,--file", o->file, "a file with the user's message; -: standard input, all of it")
          ->excludes(prompt)
          ->group(kAnswerOptions);
  c.add_option("--system", o->system, "instructions (harmony's developer message)")->group(kAnswerOptions);
  c.add_option("--reasoning", o->reasoning, "effort: low, medium or high")
      ->check(one_of({"low", "medium", "high"}))
      ->group(kAnswerOptions);
  c.add_option("--reasoning-budget", o->sampling.reasoning_budget,
               "tokens of reasoning, behind which the answer is begun; -1: as many as the model wants")
      ->check(in_range(-1, INT_MAX))
      ->group(kAnswerOptions);
  c.add_flag("--raw", o->raw, "continue the prompt as plain text, without the chat format")
      ->excludes("--system")
      ->excludes("--reasoning")
      ->excludes("--reasoning-budget")
      ->group(kAnswerOptions);
  c.add_option("-n,--max-tokens", o->sampling.max_tokens,
               "most tokens to generate; 0: until the context is full")
      ->transform(minus_one_is_zero())
      ->group(kAnswerOptions);
  c.add_option("--ctx", o->context,
               "context length in tokens; 0: the model's maximum, or as many as fit into the memory")
      ->check(in_range(0, 1 << 30))
      ->group(kModelOptions);
  c.add_option("--tokenizer", o->tokenizer,
               "a tokenizer.json or .tiktoken file instead of the model's own; dummy: models need one")
      ->group(kRareOptions);
  add_store_options(c, *o);
  add_speculation_options(c, *o);
  add_sampling_options(c, *o);
  c.add_option("--stop", o->sampling.stop_strings, "text that ends the answer (may be given several times)")
      ->allow_extra_args(false)
      ->group(kAnswerOptions);
  c.add_option("--json-schema", o->schema_path,
               "JSON schema that the answer must follow, or a file with it ({}: any JSON)")
      ->group(kAnswerOptions);
  add_output_options(c, *o);
  c.footer(
      "Examples:\n"
      "  moesaic run openai/gpt-oss-20b       a conversation; /help lists its commands\n"
      "  moesaic run openai/gpt-oss-20b Why is the sky blue --reasoning low\n"
      "  moesaic run -m openai/gpt-oss-20b -f question.txt -o json\n"
      "  git diff | moesaic run openai/gpt-oss-20b Review this change\n"
      "  moesaic run -m openai/gpt-oss-20b --raw -p \"Once upon a time\" -n 50 --temp 0");
  return [o, prompt, file, model, &app, &c]() -> Status {
    o->has_prompt = prompt->count() + file->count() > 0;
    if (!unknown_option(c).empty())
      return usage(invalid("{}", usage_error(app, CLI::ExtrasError(c.remaining()))));
    RETURN_IF_ERROR(take_words(*o, c.remaining(), model->count() > 0));
    return run_run(*o);
  };
}

}  // namespace moesaic::app
