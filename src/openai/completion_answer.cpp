#include "openai/completion_answer.h"

#include <ctime>
#include <utility>

#include "openai/sampling_fields.h"
#include "openai/sse.h"
#include "text/utf8.h"

namespace moesaic::openai {

void CharacterCount::add(std::string_view bytes) {
  open_ += bytes;
  std::string_view rest = open_;
  while (!rest.empty()) {
    const Utf8Step step = utf8_step(rest);
    if (step.kind == Utf8Kind::kIncomplete) break;
    rest.remove_prefix(step.length);
    ++whole_;
  }
  open_.erase(0, open_.size() - rest.size());
}

CompletionAnswer::CompletionAnswer(const Service& service, Options options)
    : model_(service.model),
      options_(std::move(options)),
      head_({{"id", new_id("cmpl-")},
             {"object", "text_completion"},
             {"created", std::time(nullptr)},
             {"model", service.name}}),
      choices_(static_cast<size_t>(options_.prompts) * options_.n),
      open_(static_cast<int>(choices_.size())) {
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    if (!options_.echoes.empty()) choice.text = options_.echoes[i / options_.n];
    if (!options_.prompt_sizes.empty()) choice.outcome.prompt_tokens = options_.prompt_sizes[i / options_.n];
  }
}

Json CompletionAnswer::Logprobs::json() const {
  return {{"tokens", tokens.json()},
          {"token_logprobs", token_logprobs.json()},
          {"top_logprobs", top_logprobs.json()},
          {"text_offset", text_offset.json()}};
}

// known: the token has a log-probability; a text's first one has none. text: the text has the token.
void CompletionAnswer::add_logprob(const SampledToken& token, bool known, bool text, Choice& choice) const {
  const std::string bytes = model_.detokenize({&token.token, 1}), name = utf8_lossy(bytes);
  Json top = Json::object();
  for (const auto& [id, logprob] : token.logprobs.top)
    top.emplace(utf8_lossy(model_.detokenize({&id, 1})), finite_logprob(logprob));  // likeliest first
  top[name] = finite_logprob(token.logprobs.logprob);  // also where others are likelier
  choice.logprobs.tokens.push_back(name);
  choice.logprobs.token_logprobs.push_back(known ? Json(finite_logprob(token.logprobs.logprob)) : Json());
  if (!known) top = nullptr;
  choice.logprobs.top_logprobs.push_back(top);
  choice.logprobs.text_offset.push_back(choice.characters.begun());
  if (text) choice.characters.add(bytes);  // a character counts with its first byte's token
}

bool CompletionAnswer::is_text(int32_t token) const {
  return !options_.skip_special || !is_special(model_, token);
}

// Tokens that no text shows are left out, except where the answer is cut off.
void CompletionAnswer::take_logprobs(const AnswerEvent& event, Choice& choice) const {
  if (!options_.logprobs) return;
  const auto add = [&](const std::vector<SampledToken>& tokens) {
    for (const SampledToken& token : tokens) add_logprob(token, true, is_text(token.token), choice);
  };
  if (event.token) {
    const int32_t token = event.token->token;
    if (choice.outcome.generated_tokens == 0) choice.characters.end();  // the prompt's text
    choice.waiting.add(*event.token, is_text(token) ? model_.detokenize({&token, 1}) : "");
  }
  for (const TextPiece& piece : event.pieces) add(choice.waiting.shown_by(piece.text));
  if (event.end && event.end->finish == FinishReason::kLength) add(choice.waiting.rest());
}

void CompletionAnswer::take_answer(const AnswerEvent& event, Choice& choice) const {
  if (!options_.answered) return;
  for (const TextPiece& piece : event.pieces) choice.text += piece.text;
  take_logprobs(event, choice);
  if (event.token && options_.token_ids) choice.tokens.push_back(event.token->token);
}

Json CompletionAnswer::choice_json(int index) const {
  const Choice& choice = choices_[index];
  const FinishReason finish = choice.outcome.finish;
  Json json = {{"index", index},
               {"text", choice.text},
               {"logprobs", options_.logprobs ? choice.logprobs.json() : Json()},
               {"finish_reason", finish == FinishReason::kNone     ? Json()
                                 : finish == FinishReason::kLength ? Json("length")
                                                                   : Json("stop")}};
  if (!options_.token_ids) return json;
  json["token_ids"] = choice.tokens;
  if (!choice.begun) json["prompt_token_ids"] = options_.prompt_tokens[index / options_.n];
  return json;
}

void CompletionAnswer::add(const AnswerEvent& event, std::string* sse) {
  Choice& choice = choices_[event.choice];
  for (const SampledToken& token : event.prompt)
    add_logprob(token, !choice.logprobs.tokens.empty(), true, choice);
  take_answer(event, choice);
  if (event.token && options_.answered) ++choice.outcome.generated_tokens;
  if (event.read) choice.outcome.cached_tokens = event.read->progress.cached;
  if (event.end) {
    choice.outcome = *event.end;
    if (!options_.answered) choice.outcome.generated_tokens = 0;
    --open_;
  }
  if (event.read && sse != nullptr) {
    Json chunk = head_;
    chunk["choices"] = Json::array(
        {{{"index", event.choice}, {"text", ""}, {"logprobs", nullptr}, {"finish_reason", nullptr}}});
    chunk["prompt_progress"] = progress_json(*event.read);
    append_event(*sse, dump(chunk));
  }
  const bool prompt_only = !event.token && !event.end;  // more of it may come
  if (sse == nullptr || prompt_only || (choice.text.empty() && choice.tokens.empty() && !event.end)) return;
  Json chunk = head_;
  chunk["choices"] = Json::array({choice_json(event.choice)});
  if (options_.continuous_usage) chunk["usage"] = usage_json(usage());
  append_event(*sse, dump(chunk));
  choice.begun = true;
  choice.text.clear();
  choice.tokens.clear();
  choice.logprobs = {};
}

void CompletionAnswer::finish(std::string& sse) {
  if (options_.include_usage) {
    Json chunk = head_;
    chunk["choices"] = Json::array();
    chunk["usage"] = usage_json(usage());
    append_event(sse, dump(chunk));
  }
  sse += kDone;
}

std::string CompletionAnswer::whole() {
  Json json = head_;
  json["choices"] = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) json["choices"].push_back(choice_json(static_cast<int>(i)));
  json["usage"] = usage_json(usage());
  return dump(json);
}

Usage CompletionAnswer::usage() const {
  Usage sum;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Outcome& outcome = choices_[i].outcome;
    sum.generated_tokens += outcome.generated_tokens;
    if (i % options_.n != 0) continue;  // a prompt counts once
    sum.prompt_tokens += outcome.prompt_tokens;
    sum.cached_tokens += outcome.cached_tokens;
    sum.cache_write_tokens += outcome.cache_write_tokens;
  }
  return sum;
}

}  // namespace moesaic::openai
