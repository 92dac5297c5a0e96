// moesaic.h over engine.h: requests.
#include <optional>

#include "api/c_common.h"

namespace moesaic::c_api {
namespace {

moesaic_request default_request() {
  moesaic_request r{};
  r.size = sizeof r;
  r.temperature = r.top_p = r.repetition_penalty = 1;
  r.reuse_prefix = 1;
  r.prompt_logprobs = -1;
  r.reasoning_budget = -1;
  return r;
}

// An array that is copied may have so many entries: a size that was never set is refused before the array is
// read.
constexpr size_t kMostItems = 1u << 20;
Status check_array(const void* pointer, size_t count, const char* name) {
  if (count > kMostItems) return invalid("{}: {} entries; at most {}", name, count, kMostItems);
  return not_null(pointer, count, name);
}

Status check_arrays(const moesaic_request& r) {
  RETURN_IF_ERROR(check_array(r.prompt, r.prompt_tokens, "request.prompt"));
  RETURN_IF_ERROR(check_array(r.biases, r.bias_count, "request.biases"));
  RETURN_IF_ERROR(check_array(r.stop_strings, r.stop_string_count, "request.stop_strings"));
  RETURN_IF_ERROR(check_strings(r.stop_strings, r.stop_string_count, "request.stop_strings"));
  RETURN_IF_ERROR(check_array(r.stop_tokens, r.stop_token_count, "request.stop_tokens"));
  RETURN_IF_ERROR(check_array(r.functions, r.function_count, "request.functions"));
  for (const moesaic_function& f : std::span(r.functions, r.function_count))
    RETURN_IF_ERROR(not_null(f.name, "a name of request.functions"));
  RETURN_IF_ERROR(check_array(r.choices, r.choice_count, "request.choices"));
  RETURN_IF_ERROR(check_strings(r.choices, r.choice_count, "request.choices"));
  RETURN_IF_ERROR(check_array(r.bad_words, r.bad_word_count, "request.bad_words"));
  for (const moesaic_tokens& word : std::span(r.bad_words, r.bad_word_count))
    RETURN_IF_ERROR(check_array(word.tokens, word.count, "a word of request.bad_words"));
  return {};
}

// Checks what Model::submit cannot see: flags, tokens and other values that a C type does not restrict.
Status check_values(const moesaic_request& r, int vocab) {
  RETURN_IF_ERROR(check_flag(r.chat, "request.chat"));
  RETURN_IF_ERROR(check_flag(r.logprobs, "request.logprobs"));
  RETURN_IF_ERROR(check_flag(r.must_call, "request.must_call"));
  RETURN_IF_ERROR(check_flag(r.reuse_prefix, "request.reuse_prefix"));
  RETURN_IF_ERROR(check_flag(r.prompt_logits, "request.prompt_logits"));
  RETURN_IF_ERROR(check_flag(r.no_speculation, "request.no_speculation"));
  if (r.top_logprobs < 0) return invalid("request.top_logprobs {} is negative", r.top_logprobs);
  for (const int32_t token : std::span(r.stop_tokens, r.stop_token_count)) {
    if (token < 0 || token >= vocab)
      return invalid("request.stop_tokens: token {} is outside the vocabulary of {}", token, vocab);
  }
  return {};
}

int top_logprobs(const moesaic_request& r) {
  return r.logprobs != 0 || r.top_logprobs > 0 ? r.top_logprobs : -1;
}

SamplingParams sampling_of(const moesaic_request& r) {
  SamplingParams s{.temperature = r.temperature,
                   .top_p = r.top_p,
                   .top_k = r.top_k,
                   .min_p = r.min_p,
                   .repetition_penalty = r.repetition_penalty,
                   .presence_penalty = r.presence_penalty,
                   .frequency_penalty = r.frequency_penalty,
                   .logit_bias = {},
                   .seed = r.seed,
                   .max_tokens = r.max_tokens,
                   .stop_tokens = {r.stop_tokens, r.stop_tokens + r.stop_token_count},
                   .stop_strings = {r.stop_strings, r.stop_strings + r.stop_string_count},
                   .top_logprobs = top_logprobs(r),
                   .min_tokens = r.min_tokens,
                   .prompt_logprobs = r.prompt_logprobs,
                   .reasoning_budget = r.reasoning_budget};
  for (size_t i = 0; i < r.bias_count; ++i) s.logit_bias[r.biases[i].token] = r.biases[i].bias;
  for (const moesaic_tokens& word : std::span(r.bad_words, r.bad_word_count))
    s.bad_words.emplace_back(word.tokens, word.tokens + word.count);
  return s;
}

std::string text_or_none(const char* text) { return text != nullptr ? text : ""; }

AnswerFormat format_of(const moesaic_request& r) {
  AnswerFormat format{.chat = r.chat != 0,
                      .json_schema = text_or_none(r.json_schema),
                      .must_call = r.must_call != 0,
                      .regex = text_or_none(r.regex),
                      .gbnf = text_or_none(r.grammar),
                      .choices = {r.choices, r.choices + r.choice_count}};
  for (const moesaic_function& f : std::span(r.functions, r.function_count))
    format.functions.push_back({f.name, text_or_none(f.json_schema)});
  return format;
}

Result<GenerationRequest> generation_of(const moesaic_request& r, const Model& model) {
  RETURN_IF_ERROR(check_arrays(r));
  RETURN_IF_ERROR(check_values(r, model.vocab()));
  GenerationRequest g{.prompt = {r.prompt, r.prompt + r.prompt_tokens},
                      .chat = r.chat != 0,
                      .sampling = sampling_of(r),
                      .grammar = {},
                      .reuse_prefix = r.reuse_prefix != 0,
                      .prompt_logits = r.prompt_logits != 0,
                      .speculate = r.no_speculation == 0,
                      .cache_salt = text_or_none(r.cache_salt)};
  const AnswerFormat format = format_of(r);
  if (format.any_text() && format.functions.empty() && !format.must_call) return g;
  ASSIGN_OR_RETURN(g.grammar, AnswerGrammar::compile(format));
  return g;
}

using TokenCallback = void (*)(void* user, const moesaic_token* token);

void pass_token(TokenCallback call, void* user, const SampledToken& t, int position) {
  std::vector<moesaic_logprob> top;
  for (const auto& [token, logprob] : t.logprobs.top) top.push_back({token, logprob});
  const moesaic_token token{.size = sizeof token,
                            .token = t.token,
                            .logprob = t.logprobs.logprob,
                            .top = top.data(),
                            .top_count = top.size(),
                            .is_stop = t.is_stop ? 1 : 0,
                            .position = position};
  call(user, &token);
}

void pass_text(const moesaic_request& r, const TextPiece& p) {
  const moesaic_text piece{.size = sizeof piece,
                           .channel = p.channel.c_str(),
                           .recipient = p.recipient.c_str(),
                           .text = p.text.c_str(),
                           .bytes = p.text.size(),
                           .begins = p.begins ? 1 : 0};
  r.on_text(r.user, &piece);
}

void pass_end(const moesaic_request& r, const Outcome& o) {
  if (r.on_end == nullptr) return;
  std::vector<moesaic_message> messages;
  for (const Message& m : o.messages)
    messages.push_back({.role = m.role.c_str(),
                        .name = m.name.c_str(),
                        .recipient = m.recipient.c_str(),
                        .channel = m.channel.c_str(),
                        .content_type = m.content_type.c_str(),
                        .text = m.text.c_str()});
  const std::string error = line_of(o.error.message());
  const moesaic_outcome outcome{.size = sizeof outcome,
                                .finish = static_cast<moesaic_finish>(o.finish),
                                .error = error.c_str(),
                                .prompt_tokens = o.prompt_tokens,
                                .generated_tokens = o.generated_tokens,
                                .cached_tokens = o.cached_tokens,
                                .cache_write_tokens = o.cache_write_tokens,
                                .recoveries = o.recoveries,
                                .messages = messages.data(),
                                .message_count = messages.size(),
                                .drafted_tokens = static_cast<int32_t>(o.speculation.drafted),
                                .accepted_tokens = static_cast<int32_t>(o.speculation.accepted)};
  r.on_end(r.user, &outcome);
}

static_assert(static_cast<int>(FinishReason::kStop) == MOESAIC_FINISH_STOP &&
              static_cast<int>(FinishReason::kLength) == MOESAIC_FINISH_LENGTH &&
              static_cast<int>(FinishReason::kCancelled) == MOESAIC_FINISH_CANCELLED &&
              static_cast<int>(FinishReason::kError) == MOESAIC_FINISH_ERROR);

void forget(moesaic_model& m, uint64_t id) {
  const std::lock_guard lock(m.mutex);
  m.cancels.erase(id);
}

// `request` has had its pointers followed: only `user` and the callbacks are still used.
Callbacks callbacks_of(moesaic_model& m, uint64_t id, const moesaic_request& request) {
  const moesaic_request& r = request;
  Callbacks c;
  if (r.on_token != nullptr)
    c.on_token = [r](const SampledToken& t) { pass_token(r.on_token, r.user, t, 0); };
  if (r.on_text != nullptr) c.on_text = [r](const TextPiece& p) { pass_text(r, p); };
  c.on_end = [&m, id, r](const Outcome& o) {
    forget(m, id);
    pass_end(r, o);
  };
  if (r.on_prompt_token != nullptr)
    c.on_prompt_token = [r, position = 0](const SampledToken& t) mutable {
      pass_token(r.on_prompt_token, r.user, t, position++);
    };
  if (r.on_logits != nullptr)
    c.on_logits = [r](int position, std::span<const float> logits) {
      r.on_logits(r.user, position, logits.data(), logits.size());
    };
  if (r.change_logits != nullptr)
    c.change_logits = [r](int position, std::span<float> logits) {
      r.change_logits(r.user, position, logits.data(), logits.size());
    };
  return c;
}

Status submit(moesaic_model& m, const moesaic_request* given, uint64_t* id_out) {
  moesaic_request request = default_request();
  RETURN_IF_ERROR(read(given, request));
  ASSIGN_OR_RETURN(GenerationRequest generation, generation_of(request, m.model));
  std::stop_source cancel;
  std::unique_lock lock(m.mutex);
  const uint64_t id = ++m.last_id;
  m.cancels.emplace(id, cancel);
  lock.unlock();
  // First: once it is submitted, a callback may look for it.
  const uint64_t before = id_out != nullptr ? *id_out : 0;
  if (id_out != nullptr) *id_out = id;
  Status status = m.model.submit(std::move(generation), callbacks_of(m, id, request), cancel.get_token());
  if (status.ok()) return status;
  forget(m, id);
  if (id_out != nullptr) *id_out = before;
  return status;
}

}  // namespace
}  // namespace moesaic::c_api

using namespace moesaic;
using namespace moesaic::c_api;

void moesaic_request_init(moesaic_request* request, size_t size) {
  enter([&]() -> Status {
    RETURN_IF_ERROR(not_null(request, "request"));
    return write(default_request(), request, size);
  });
}

moesaic_status moesaic_submit(moesaic_model* m, const moesaic_request* request, uint64_t* id) {
  return enter([&]() -> Status {
    RETURN_IF_ERROR(usable(m));
    RETURN_IF_ERROR(not_null(request, "request"));
    return submit(*m, request, id);
  });
}

void moesaic_cancel(moesaic_model* m, uint64_t id) {
  enter([&]() -> Status {
    RETURN_IF_ERROR(usable(m));
    std::optional<std::stop_source> found;
    {
      const std::lock_guard lock(m->mutex);
      if (const auto at = m->cancels.find(id); at != m->cancels.end()) found.emplace(at->second);
    }
    if (found) found->request_stop();
    return {};
  });
}
