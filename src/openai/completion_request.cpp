#include "openai/completion_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "openai/completion_answer.h"
#include "openai/generation_fields.h"
#include "openai/known_fields.h"
#include "openai/reasoning_budget.h"
#include "openai/sampling_fields.h"
#include "openai/tool_choice.h"

namespace moesaic::openai {
namespace {

constexpr int kDefaultMaxTokens = 16;  // as OpenAI has it for this endpoint
constexpr int kMaxLogprobs = 20;

using Tokens = std::vector<int32_t>;

struct CompletionRequest {
  SamplingParams sampling;
  std::vector<Tokens> prompts;
  AnswerForm form;
  int n = 1;
  StreamFields stream;
  bool echo = false, cache_prompt = true;
  bool seeded = false;  // by the request: its prompts share the seed
  std::string cache_salt;
  bool parse_special = true;  // in the prompt
  bool token_ids = false;     // in the answer
  bool answered = true;       // false: echo with max_tokens 0
};

Result<Tokens> token_ids(const Json& list, int vocab) {
  Tokens tokens;
  for (const Json& id : list) {
    const std::optional<int32_t> token = token_id(id, vocab);
    if (!token) return invalid("a prompt of token ids holds something else than ids below {}", vocab);
    tokens.push_back(*token);
  }
  return tokens;
}

Result<Tokens> one_prompt(const Json& prompt, const Service& service, bool special) {
  if (prompt.is_string())
    return service.model.tokenize(prompt.get_ref<const std::string&>(), special, prompt_limit(service));
  if (prompt.is_array()) return token_ids(prompt, service.model.vocab());
  return invalid("a prompt is a string or an array of token ids");
}

bool is_list_of_prompts(const Json& prompt) {
  return prompt.is_array() && !prompt.empty() && !text::double_of(prompt[0]);
}

void add_prompt(const Json& prompt, Fields& fields, const Service& service, CompletionRequest& r) {
  Result<Tokens> tokens = one_prompt(prompt, service, r.parse_special);
  if (!tokens.ok()) return fields.refuse("prompt", tokens.status().message());
  const size_t count = tokens.value().size();
  if (count == 0) return fields.refuse("prompt", "is empty");
  const size_t counted = prompt.is_string() ? prompt_limit(service).most : count;
  if (Refusal refusal = check_prompt_length(count, counted, "prompt", service))
    return fields.refuse(*std::move(refusal));
  r.prompts.push_back(std::move(tokens).value());
}

void read_prompts(Fields& fields, const Service& service, CompletionRequest& r) {
  const Json* prompt = fields.find("prompt");
  if (prompt == nullptr) return fields.refuse("prompt", "is missing");
  if (!is_list_of_prompts(*prompt)) return add_prompt(*prompt, fields, service, r);
  if (prompt->size() * r.n > static_cast<size_t>(service.max_answers))
    return fields.refuse("prompt", fmt::format("more than {} answers in one request", service.max_answers));
  for (const Json& one : *prompt) add_prompt(one, fields, service, r);
}

void read_logprobs(Fields& fields, CompletionRequest& r) {
  const Json* given = fields.find("logprobs");
  if (given != nullptr && given->is_boolean())  // as in chat completions
    r.sampling.top_logprobs = given->get<bool>() ? 1 : -1;
  else
    fields.integer("logprobs", r.sampling.top_logprobs, 0, kMaxLogprobs);
  if (r.echo) r.sampling.prompt_logprobs = r.sampling.top_logprobs;
}

// Reads the number of tokens. Where it is 0, the echoed prompt is all that is wanted: one is made for nobody.
void read_length(Fields& fields, CompletionRequest& r) {
  const Json* given = fields.find("max_tokens");
  if (r.echo && given != nullptr && whole_number(*given) == 0) {
    r.answered = false;
    r.sampling.max_tokens = 1;
    return;
  }
  r.sampling.max_tokens = kDefaultMaxTokens;
  read_max_tokens(fields, {"max_completion_tokens", "max_tokens", "n_predict", "max_new_tokens"}, r.sampling);
}

void read_completion(Fields& fields, const Service& service, CompletionRequest& r) {
  read_model(fields, service);
  read_sampling(fields, service.model, r.sampling);
  r.seeded = given_seed(fields).has_value();
  r.sampling.reasoning_budget = read_reasoning_budget(fields, false).value_or(service.reasoning_budget);
  r.sampling.skip_special = true;
  fields.read("skip_special_tokens", r.sampling.skip_special);
  fields.read("echo", r.echo);
  read_length(fields, r);
  read_logprobs(fields, r);
  fields.integer("n", r.n, 1, service.max_choices);
  int best_of = r.n;
  fields.integer("best_of", best_of, INT32_MIN, INT32_MAX);
  if (best_of != r.n)
    fields.refuse("best_of", "only as n: all answers are returned, and none is chosen among");
  read_format(fields, "response_format", fields.find("response_format"), r.form);
  read_other_formats(fields, r.form);
  if (!r.form.empty()) check_with_grammar(fields);
  r.cache_prompt = read_cache_prompt(fields);
  r.cache_salt = read_cache_salt(fields);
  r.stream = read_stream(fields);
  fields.read("parse_special", r.parse_special);
  fields.read("return_token_ids", r.token_ids);
  read_prompts(fields, service, r);
}

}  // namespace

PreparedRequestOrError prepare_completion(std::string_view body, const Service& service) {
  const Result<Json> root = parse_object(body);
  if (!root.ok()) return api_error(root.status());
  Fields fields(root.value());
  UnknownFields unknown = check_fields(root.value(), completion_fields(), service.strict_fields, fields);
  CompletionRequest r;
  read_completion(fields, service, r);
  if (!fields.ok()) return *fields.refusal();
  auto grammar = grammar_of({}, r.form, false, service);
  if (auto* error = std::get_if<ApiError>(&grammar)) return *error;
  PreparedRequest prepared{
      .requests = {}, .answer = nullptr, .stream = r.stream.stream, .progress = r.stream.progress};
  prepared.unknown = std::move(unknown);
  CompletionAnswer::Options options{.prompts = static_cast<int>(r.prompts.size()),
                                    .n = r.n,
                                    .logprobs = r.sampling.top_logprobs >= 0,
                                    .skip_special = r.sampling.skip_special,
                                    .include_usage = r.stream.include_usage,
                                    .continuous_usage = r.stream.continuous_usage,
                                    .prompt_sizes = {},
                                    .echoes = {},
                                    .answered = r.answered,
                                    .token_ids = r.token_ids};
  if (r.token_ids) options.prompt_tokens = r.prompts;
  for (Tokens& prompt : r.prompts) {
    options.prompt_sizes.push_back(static_cast<int>(prompt.size()));
    if (r.echo) options.echoes.push_back(service.model.detokenize(prompt));
    const GenerationRequest one{.prompt = prompt,
                                .sampling = r.sampling,
                                .grammar = std::get<AnswerGrammar>(grammar),
                                .reuse_prefix = r.cache_prompt,
                                .cache_salt = r.cache_salt};
    for (GenerationRequest& request : repeated(one, r.n)) prepared.requests.push_back(std::move(request));
    if (!r.seeded) r.sampling.seed += r.n;
  }
  prepared.answer = std::make_unique<CompletionAnswer>(service, std::move(options));
  return prepared;
}

}  // namespace moesaic::openai
