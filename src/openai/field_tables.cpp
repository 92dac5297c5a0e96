// The tables of known_fields.h. Sources, as of November 2026: OpenAI's API as openai-python 3.57 has it, vLLM
// 0.25's ChatCompletionRequest, CompletionRequest and ResponsesRequest, llama.cpp's tools/server; SGLang's
// and OpenRouter's fields where clients send them.
#include <algorithm>

#include "openai/known_fields.h"

namespace moesaic::openai {
namespace {

using enum Treatment;
constexpr std::string_view kFalse = "[false]", kTrue = "[true]", kEmpty = "[[]]", kNoText = R"([""])";

// ---- members of objects ----

constexpr KnownField kStreamOptions[] = {
    {"include_usage"},
    {"include_obfuscation", kIgnored},
    {"continuous_usage_stats"},
};
constexpr FieldTable kStreamOptionsMembers{{{{"`stream_options`", kStreamOptions}}}};

constexpr KnownField kJsonSchema[] = {
    {"name"},
    {"description"},
    {"schema"},
    {"strict", kIgnored},
};
constexpr FieldPart kJsonSchemaPart{"`response_format.json_schema`", kJsonSchema};
constexpr FieldTable kJsonSchemaMembers{{{kJsonSchemaPart}}};

constexpr KnownField kResponseFormat[] = {
    {"type"},
    {"json_schema", kRead, {}, {}, &kJsonSchemaMembers},
    {"schema"},
    {"value"},
};
constexpr FieldTable kResponseFormatMembers{{{{"`response_format`", kResponseFormat}}}};

constexpr KnownField kTextFormat[] = {{"type"}};
constexpr FieldTable kTextFormatMembers{{{kJsonSchemaPart, {"`text.format`", kTextFormat}}}};

constexpr KnownField kText[] = {
    {"format", kRead, {}, {}, &kTextFormatMembers},
    {"verbosity"},
};
constexpr FieldTable kTextMembers{{{{"`text`", kText}}}};

constexpr KnownField kReasoning[] = {
    {"effort"},
    {"exclude"},
    {"enabled"},
    {"summary", kIgnored},
    {"generate_summary", kIgnored},
    {"context", kRefused, R"(["auto", "current_turn"])", "earlier turns are in the prompt without reasoning"},
    {"mode", kRefused, R"(["standard"])", "use reasoning.effort"},
    {"max_tokens"},
};
constexpr FieldTable kReasoningMembers{{{{"`reasoning`", kReasoning}}}};

constexpr KnownField kPromptCache[] = {
    {"mode", kIgnored},
    {"ttl", kIgnored},
    {"comparison_response_id", kIgnored},
    {"prewarm", kRefused, kFalse, "ask for one token: the prompt is cached then"},
};
constexpr FieldTable kPromptCacheMembers{{{{"`prompt_cache_options`", kPromptCache}}}};

constexpr KnownField kTemplate[] = {
    {"reasoning_effort"},
    {"enable_thinking", kRead, kTrue},
    {"thinking"},
    {"thinking_budget"},
    {"reasoning_budget"},
    {"model_identity"},
    {"builtin_tools", kRefused, kEmpty, "offer functions in tools"},
    {"add_generation_prompt", kRefused, kTrue, "the answer begins a message of its own"},
};
constexpr FieldTable kChatTemplateMembers{{{{"`chat_template_kwargs`", kTemplate}}}};

constexpr KnownField kThinking[] = {
    {"type"},
    {"budget_tokens"},
};
constexpr FieldTable kThinkingMembers{{{{"`thinking`", kThinking}}}};

constexpr KnownField kFunction[] = {
    {"name"}, {"description"}, {"parameters"}, {"strict"}, {"defer_loading", kIgnored},
};
constexpr FieldPart kFunctionPart{"functions of `tools`", kFunction};
constexpr FieldTable kFunctionMembers{{{kFunctionPart}}};

// The two shapes of a function. Tools of other kinds are left out as a whole.
constexpr KnownField kTool[] = {
    {"type"},
    {"function", kRead, {}, {}, &kFunctionMembers},
    {"allowed_callers", kIgnored},
    {"output_schema", kIgnored},
    {"cache_control", kIgnored},
};
constexpr FieldTable kToolMembers{{{{"`tools`", kTool}, kFunctionPart}}};

constexpr std::string_view kOtherForms = "give a JSON schema, a regular expression, a grammar or choices";

constexpr KnownField kStructuredOutputs[] = {
    {"json"},
    {"json_object"},
    {"regex"},
    {"choice"},
    {"grammar", kRead, kNoText},
    {"structural_tag", kRefused, {}, kOtherForms},
    {"whitespace_pattern", kRefused, {}, kOtherForms},
    {"disable_any_whitespace", kRefused, kFalse, kOtherForms},
    {"disable_additional_properties", kRefused, kFalse, "write additionalProperties into the schema"},
    {"disable_fallback", kIgnored},
};
constexpr FieldTable kStructuredOutputsMembers{{{{"`structured_outputs`", kStructuredOutputs}}}};

// ---- what all endpoints that generate have ----

constexpr KnownField kCommon[] = {
    {"model"},
    {"stream"},
    {"stream_options", kRead, {}, {}, &kStreamOptionsMembers},
    {"temperature", kRead, "[1]"},
    {"top_p", kRead, "[1]"},
    {"top_k", kRead, "[-1, 0]"},
    {"min_p", kRead, "[0]"},
    {"presence_penalty", kRead, "[0]"},
    {"frequency_penalty", kRead, "[0]"},
    {"repetition_penalty", kRead, "[1]"},
    {"repeat_penalty", kRead, "[1]"},
    {"repeat_last_n", kRead, "[-1]"},
    {"logit_bias", kRead, "[{}]"},
    {"seed"},
    {"stop", kRead, R"([[], ""])"},
    {"stop_token_ids", kRead, kEmpty},
    {"include_stop_str_in_output", kRead, kFalse},
    {"ignore_eos", kRead, kFalse},
    {"min_tokens", kRead, "[0]"},
    {"n_predict", kRead, "[-1]"},
    {"max_new_tokens"},
    {"allowed_token_ids", kRead, kEmpty},
    {"bad_words", kRead, kEmpty},
    {"cache_prompt", kRead, kTrue},
    {"cache_salt", kRead, kNoText},
    {"guided_json"},
    {"guided_regex"},
    {"guided_choice"},
    {"guided_grammar"},
    {"json_schema"},
    {"grammar", kRead, kNoText},
    {"regex"},
    {"ebnf"},
    {"structured_outputs", kRead, "[{}]", {}, &kStructuredOutputsMembers},
    {"thinking_token_budget", kRead, "[-1]"},
    {"thinking_budget_tokens", kRead, "[-1]"},
    {"thinking_budget", kRead, "[-1]"},
    {"reasoning_budget", kRead, "[-1]"},
    {"reasoning_budget_tokens", kRead, "[-1]"},
    {"prompt_cache_options", kIgnored, {}, {}, &kPromptCacheMembers},
    // Samplers that are not here.
    {"mirostat", kRefused, "[0]", "use top_p or min_p"},
    {"typical_p", kRefused, "[1]", "use top_p or min_p"},
    {"tfs_z", kRefused, "[1]", "use top_p or min_p"},
    {"top_n_sigma", kRefused, "[-1, 0]", "use top_p or min_p"},
    {"adaptive_target", kRefused, "[-1]", "use top_p or min_p"},
    {"dynatemp_range", kRefused, "[0]", "use temperature"},
    {"xtc_probability", kRefused, "[0]", "use temperature"},
    {"dry_multiplier", kRefused, "[0]", "use repetition_penalty"},
    {"penalize_nl", kRefused, kFalse, "use logit_bias"},
    {"min_keep", kRefused, "[0, 1]", "use top_k or top_p"},
    {"samplers", kRefused, kEmpty, "the order is penalties, temperature, top_k, top_p, min_p"},
    {"use_beam_search", kRefused, kFalse, "use n"},
    {"reasoning_budget_message", kRefused, kNoText, "the answer begins without a message"},
    {"length_penalty", kRefused, "[1]", "there is no beam search"},
    {"early_stopping", kRefused, kFalse, "there is no beam search"},
    {"logits_processors", kRefused, kEmpty, "use logit_bias"},
    {"repetition_detection", kRefused, {}, "use repetition_penalty"},
    {"watermarking", kRefused, kFalse, "answers carry no watermark"},
    {"top_a", kRefused, "[0]", "use min_p"},
    {"custom_logit_processor", kRefused, {}, "use logit_bias"},
    {"custom_params", kRefused, "[{}]", "there are no processors of one's own"},
    {"stop_regex", kRefused, R"([[], ""])", "use stop"},
    {"no_stop_trim", kRefused, kFalse, "use include_stop_str_in_output"},
    // Forms of an answer that are not here.
    {"guided_whitespace_pattern", kRefused, kNoText, kOtherForms},
    {"structural_tag", kRefused, kNoText, kOtherForms},
    {"grammar_lazy", kRefused, kFalse, kOtherForms},
    {"grammar_type", kRefused, R"(["", "user"])", kOtherForms},
    {"format", kRefused, kNoText, kOtherForms},
    {"grammar_triggers", kRefused, kEmpty, kOtherForms},
    // Parts of an answer that are not computed.
    {"prompt_logprobs", kRefused, {}, "use echo and logprobs of /v1/completions"},
    {"logprob_token_ids", kRefused, kEmpty, "the likeliest tokens' are to be had"},
    {"n_probs", kRefused, "[0]", "use logprobs"},
    {"post_sampling_probs", kRefused, kFalse, "log-probabilities are the model's own"},
    {"return_tokens", kRefused, kFalse, "POST /tokenize gives a text's tokens"},
    {"return_tokens_as_token_ids", kRefused, kFalse, "POST /tokenize gives a text's tokens"},
    {"return_token_offsets", kRefused, kFalse, "POST /tokenize gives a text's tokens"},
    {"return_prompt_text", kRefused, kFalse, "POST /apply-template gives it"},
    {"return_hidden_states", kRefused, kFalse, "answers are text and tokens"},
    {"response_fields", kRefused, kEmpty, "an answer is given whole"},
    // Other models, other prompts, other limits.
    {"lora", kRefused, kEmpty, "one model is served"},
    {"lora_path", kRefused, kNoText, "one model is served"},
    {"models", kRefused, kEmpty, "one model is served"},
    {"plugins", kRefused, kEmpty, "offer functions in tools"},
    {"transforms", kRefused, kEmpty, "shorten the prompt; POST /tokenize counts its tokens"},
    {"session_params", kRefused, "[{}]", "send the conversation's messages"},
    {"lora_request", kRefused, {}, "one model is served"},
    {"image_data", kRefused, kEmpty, "the model reads text"},
    {"multimodal_data", kRefused, kEmpty, "the model reads text"},
    {"prompt_embeds", kRefused, {}, "send the prompt as text or token ids"},
    {"truncate_prompt_tokens", kRefused, {}, "shorten the prompt; POST /tokenize counts its tokens"},
    {"kv_transfer_params", kRefused, "[{}]", "one server does all the work"},
    {"ec_transfer_params", kRefused, "[{}]", "one server does all the work"},
    {"vllm_xargs", kRefused, "[{}]", "there are no extensions"},
    // Some clients send these here, and they belong elsewhere.
    {"extra_body", kRefused, "[{}]", "its members belong into the request itself"},
    {"options", kRefused, "[{}]", "its members belong into the request itself"},
    {"stop_sequences", kRefused, kEmpty, "use stop"},
    {"t_max_predict_ms", kRefused, "[-1, 0]", "use max_tokens"},
    {"t_max_prompt_ms", kRefused, "[-1, 0]", "serve --request-timeout limits an answer's time"},
    {"n_indent", kRefused, "[0]", "say it in the prompt"},
    {"moderation", kRefused, {}, "nothing is moderated here"},
};

// These name the user and the priority, or (from mirostat_tau on) are without effect unless the field that
// switches them on is there, and that one is refused: none of them changes an answer.
constexpr auto kCommonIgnored = ignored<48>(
    "user safety_identifier prompt_cache_key prompt_cache_retention service_tier "
    "store priority request_id session_id stream_interval sse_ping_interval timings_per_token verbose "
    "id_slot n_cache_reuse n_keep n_discard backend_sampling reasoning_control rid keep_alive provider "
    "usage guided_decoding_backend add_special_tokens spaces_between_special_tokens truncation_side "
    "media_io_kwargs mm_processor_kwargs return_mm_kwargs routed_experts_prompt_start preserved_tokens "
    "speculative.n_max speculative.n_min speculative.p_min mirostat_tau mirostat_eta dynatemp_exponent "
    "xtc_threshold dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers adaptive_decay "
    "reasoning_budget_start_tag reasoning_budget_end_tag reasoning_budget_end_tags thinking_forced_open");

// ---- what chats have, in both shapes ----

constexpr KnownField kConversation[] = {
    {"tools", kRead, kEmpty, {}, &kToolMembers},
    {"tool_choice", kRead, R"(["none", "auto"])"},
    {"parallel_tool_calls", kRead, kTrue},
    {"reasoning", kRead, "[{}]", {}, &kReasoningMembers},
    {"reasoning_effort"},
    {"include_reasoning", kRead, kTrue},
    {"enable_thinking", kRead, kTrue},
    {"thinking", kRead, {}, {}, &kThinkingMembers},
    {"chat_template_kwargs", kRead, "[{}]", {}, &kChatTemplateMembers},
    {"top_logprobs", kRead, "[0]"},
    {"metadata", kIgnored},
    {"skip_special_tokens", kRefused, kTrue, "special tokens never stand in content"},
    {"chat_template", kRefused, kNoText, "the prompt is harmony's"},
    {"documents", kRefused, kEmpty, "send them in messages"},
    {"echo", kRefused, kFalse, "a chat's answer is the new message alone"},
    {"reasoning_format", kRefused, R"(["auto", "deepseek"])", "reasoning comes as reasoning_content"},
    {"separate_reasoning", kRefused, kTrue, "reasoning comes as reasoning_content"},
    {"stream_reasoning", kRefused, kTrue, "include_reasoning leaves it out"},
    {"parse_tool_calls", kRefused, kTrue, "use \"tool_choice\": \"none\""},
    {"chat_format", kRefused, {}, "the prompt is harmony's"},
    {"chat_parser", kRefused, {}, "the prompt is harmony's"},
    {"generation_prompt", kRefused, kNoText, "the prompt is harmony's"},
};

constexpr KnownField kChat[] = {
    {"messages"},
    {"max_tokens"},
    {"max_completion_tokens"},
    {"n", kRead, "[1]"},
    {"logprobs", kRead, kFalse},
    {"return_token_ids", kRead, kFalse},
    {"return_progress", kRead, kFalse},
    {"continue_final_message", kRead, kFalse},
    {"add_generation_prompt", kRead, kTrue},
    {"response_format", kRead, R"([{"type": "text"}])", {}, &kResponseFormatMembers},
    {"prediction", kIgnored},
    {"n_cmpl", kRefused, "[1]", "use n"},
    {"best_of", kRefused, "[1]", "use n"},
    {"max_output_tokens", kRefused, {}, "use max_completion_tokens"},
    {"verbosity", kRead, R"(["medium"])"},
    {"modalities", kRefused, R"([["text"], []])", "the model writes text"},
    {"audio", kRefused, {}, "the model writes text"},
    {"functions", kRefused, kEmpty, "use tools"},
    {"function_call", kRefused, R"(["none", "auto"])", "use tool_choice"},
    {"web_search_options", kRefused, {}, "offer a function that searches"},
    {"prompt", kRefused, {}, "send messages, or use /v1/completions"},
    {"input", kRefused, {}, "send messages, or use /v1/responses"},
    {"instructions", kRefused, kNoText, "send a system message"},
    {"text", kRefused, R"([{}, {"format": {"type": "text"}}])", "use response_format"},
};

constexpr KnownField kCompletion[] = {
    {"prompt"},
    {"max_tokens"},
    {"max_completion_tokens"},
    {"n", kRead, "[1]"},
    {"best_of", kRead, "[1]"},
    {"logprobs", kRead, kFalse},
    {"echo", kRead, kFalse},
    {"return_token_ids", kRead, kFalse},
    {"return_progress", kRead, kFalse},
    {"skip_special_tokens", kRead, kTrue},
    {"parse_special", kRead, kFalse},
    {"response_format", kRead, R"([{"type": "text"}])", {}, &kResponseFormatMembers},
    {"metadata", kIgnored},
    {"n_cmpl", kRefused, "[1]", "use n"},
    {"suffix", kRefused, kNoText, "the model was not trained to fill in"},
    {"max_output_tokens", kRefused, {}, "use max_tokens"},
    {"messages", kRefused, {}, "send a prompt, or use /v1/chat/completions"},
    {"input", kRefused, {}, "send a prompt, or use /v1/responses"},
    {"tools", kRefused, kEmpty, "use /v1/chat/completions"},
    {"tool_choice", kRefused, R"(["none", "auto"])", "use /v1/chat/completions"},
    {"reasoning_effort", kRefused, {}, "use /v1/chat/completions"},
};

constexpr KnownField kResponses[] = {
    {"input"},
    {"instructions", kRead, kNoText},
    {"max_output_tokens"},
    {"stream_options", kIgnored},
    {"return_progress", kIgnored},
    {"text", kRead, R"([{}, {"format": {"type": "text"}}])", {}, &kTextMembers},
    {"include", kRead, kEmpty},
    {"previous_response_id", kRead, kNoText},
    {"store"},
    {"truncation", kIgnored},
    {"max_tool_calls", kIgnored},
    {"client_metadata", kIgnored},
    {"image", kIgnored},
    {"background_options", kIgnored},
    {"n", kRefused, "[1]", "one response is made for each request"},
    {"generate", kRefused, kTrue, "ask for one token: the prompt is cached then"},
    {"background", kRefused, kFalse, "responses are made at once; use stream"},
    {"previous_response", kRefused, {}, "send the conversation's items as input"},
    {"previous_input_messages", kRefused, kEmpty, "send the conversation's items as input"},
    {"enable_response_messages", kRefused, kFalse, "POST /apply-template shows a prompt"},
    {"conversation", kRefused, kNoText,
     "use previous_response_id, or send the conversation's items as input"},
    {"context_management", kRefused, kEmpty, "shorten the input"},
    {"access_programs", kRefused, {}, "there are none"},
    {"prompt", kRefused, {}, "send instructions and input"},
    {"messages", kRefused, {}, "send input, or use /v1/chat/completions"},
    {"max_tokens", kRefused, {}, "use max_output_tokens"},
    {"max_completion_tokens", kRefused, {}, "use max_output_tokens"},
    {"response_format", kRefused, R"([{"type": "text"}])", "use text.format"},
    {"return_token_ids", kRefused, kFalse, "chat completions and completions tell them"},
    {"logprobs", kRefused, kFalse, "use top_logprobs and include message.output_text.logprobs"},
};

constexpr KnownField kTokenize[] = {
    {"content"},
    {"prompt"},
    {"parse_special", kRead, kFalse},
    {"add_special", kIgnored},
    {"with_pieces", kRefused, kFalse, "POST /detokenize gives a token's text"},
    {"return_token_strs", kRefused, kFalse, "POST /detokenize gives a token's text"},
};

constexpr KnownField kDetokenize[] = {
    {"tokens"},
    {"model", kIgnored},
};

// ---- what only Anthropic's and Ollama's APIs have ----

constexpr KnownField kOtherApis[] = {
    {"system", kRead, kNoText},
    {"output_config", kRead, "[{}]"},
    {"output_format"},
    {"thread"},
    {"compaction"},
    {"container"},
    {"mcp_servers", kRead, kEmpty},
    {"raw", kRead, kFalse},
    {"template", kRead, kNoText},
    {"context", kRead, kEmpty},
    {"images", kRead, kEmpty},
    {"width", kRead, "[0]"},
    {"height", kRead, "[0]"},
    {"steps", kRead, "[0]"},
    {"think", kRead, R"([true, "medium"])"},
    {"_debug_render_only", kRead, kFalse},
    {"num_predict", kRead, "[-1]"},
    {"penalize_newline", kRead, kFalse},
};

constexpr FieldPart kCommonPart{"all three that generate", kCommon},
    kCommonIgnoredPart{kCommonPart.title, kCommonIgnored};
constexpr FieldPart kConversationPart{"chat completions and responses", kConversation};
constexpr FieldPart kChatPart{"chat completions", kChat};
constexpr FieldPart kCompletionPart{"completions", kCompletion};
constexpr FieldPart kResponsesPart{"responses", kResponses};
constexpr FieldPart kTokenizePart{"`/tokenize`", kTokenize};
constexpr FieldPart kDetokenizePart{"`/detokenize`", kDetokenize};

using FieldLists = std::array<std::span<const KnownField>, 7>;
constexpr FieldLists kAllApis = {kChat,      kConversation, kCommon,   kCommonIgnored,
                                 kResponses, kCompletion,   kOtherApis};

bool is_ignored_somewhere(std::string_view name) {
  return std::ranges::any_of(kAllApis, [&](std::span<const KnownField> fields) {
    return std::ranges::any_of(
        fields, [&](const KnownField& f) { return f.name == name && f.treatment == kIgnored; });
  });
}

// Adds what is not there yet. What an API that has it ignores changes no answer anywhere.
void add_elsewhere(std::span<const KnownField> fields, Treatment treatment, std::vector<KnownField>& all) {
  for (KnownField field : fields) {
    const bool known =
        std::ranges::any_of(all, [&](const KnownField& other) { return other.name == field.name; });
    if (field.treatment != treatment || known || is_ignored_somewhere(field.name)) continue;
    if (treatment == kRead) field.note = "it is a field of another API";
    field.treatment = kRefused;
    field.members = nullptr;
    all.push_back(field);
  }
}

void add_with_members(const FieldTable& table, std::vector<const FieldTable*>& tables) {
  if (std::find(tables.begin(), tables.end(), &table) != tables.end()) return;
  tables.push_back(&table);
  for (const auto& part : table.parts) {
    for (const KnownField& field : part.fields) {
      if (field.members != nullptr) add_with_members(*field.members, tables);
    }
  }
}

}  // namespace

const FieldPart& fields_elsewhere() {
  static const std::vector<KnownField> fields = [] {
    std::vector<KnownField> all;
    for (const Treatment treatment : {kRead, kRefused}) {
      for (const auto& list : kAllApis) add_elsewhere(list, treatment, all);
    }
    return all;
  }();
  static const FieldPart part{.title = {}, .fields = fields};
  return part;
}

const FieldTable& chat_fields() {
  static const FieldTable table{
      {{kChatPart, kConversationPart, kCommonPart, kCommonIgnoredPart, fields_elsewhere()}}};
  return table;
}

const FieldTable& completion_fields() {
  static const FieldTable table{{{kCompletionPart, kCommonPart, kCommonIgnoredPart, fields_elsewhere()}}};
  return table;
}

const FieldTable& responses_fields() {
  static const FieldTable table{
      {{kResponsesPart, kConversationPart, kCommonPart, kCommonIgnoredPart, fields_elsewhere()}}};
  return table;
}

// A chat's own fields may stand there too: the same body is then counted and sent.
const FieldTable& tokenize_fields() {
  static constexpr FieldTable kTable{
      {{kTokenizePart, kChatPart, kConversationPart, kCommonPart, kCommonIgnoredPart}}};
  return kTable;
}

const FieldTable& detokenize_fields() {
  static constexpr FieldTable kTable{{{kDetokenizePart}}};
  return kTable;
}

const FieldTable& tool_fields() { return kToolMembers; }

std::vector<const FieldTable*> all_field_tables() {
  std::vector<const FieldTable*> tables;
  for (const FieldTable* table :
       {&chat_fields(), &completion_fields(), &responses_fields(), &tokenize_fields(), &detokenize_fields()})
    add_with_members(*table, tables);
  return tables;
}

}  // namespace moesaic::openai
