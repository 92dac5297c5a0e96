// Source, as of November 2026: Anthropic's API as its Python client has it, beta fields included.
#include "anthropic/field_table.h"

namespace moesaic::anthropic {
namespace {

using openai::FieldTable;
using openai::KnownField;
using enum openai::Treatment;

constexpr KnownField kThinking[] = {
    {"type"},
    {"budget_tokens"},
    {"display"},
};
constexpr FieldTable kThinkingMembers{{{{"`thinking`", kThinking}}}};

constexpr KnownField kTool[] = {
    {"name"},
    {"description"},
    {"input_schema"},
    {"input_examples"},
    {"strict"},
    {"type"},
    {"cache_control", kIgnored},
    {"defer_loading", kIgnored},
    {"allowed_callers", kIgnored},
    {"eager_input_streaming", kIgnored},
};
constexpr FieldTable kToolMembers{{{{"`tools`", kTool}}}, "custom"};

constexpr KnownField kToolChoice[] = {
    {"type"},
    {"name"},
    {"disable_parallel_tool_use", kRead},
};
constexpr FieldTable kToolChoiceMembers{{{{"`tool_choice`", kToolChoice}}}};

constexpr KnownField kFormat[] = {{"type"}, {"schema"}, {"name", kIgnored}};
constexpr FieldTable kFormatMembers{{{{"`output_config.format`", kFormat}}}};

constexpr KnownField kOutputConfig[] = {
    {"effort"},
    {"format", kRead, {}, {}, &kFormatMembers},
    {"task_budget", kRefused, {}, "use max_tokens"},
};
constexpr FieldTable kOutputConfigMembers{{{{"`output_config`", kOutputConfig}}}};

constexpr KnownField kMessages[] = {
    {"model"},
    {"messages"},
    {"max_tokens"},
    {"system"},
    {"stop_sequences"},
    {"stream"},
    {"temperature"},
    {"top_p"},
    {"top_k"},
    {"tools", kRead, {}, {}, &kToolMembers},
    {"tool_choice", kRead, {}, {}, &kToolChoiceMembers},
    {"thinking", kRead, {}, {}, &kThinkingMembers},
    {"output_config", kRead, {}, {}, &kOutputConfigMembers},
    {"output_format", kRead, {}, {}, &kFormatMembers},
    {"thread", kRefused, {}, "send the conversation's messages"},
    {"compaction", kRefused, {}, "shorten the messages; /v1/messages/count_tokens counts them"},
    {"container", kRefused, {}, "there are no containers; offer tools"},
    {"mcp_servers", kRefused, "[[]]", "call MCP servers from the client, and offer their tools"},
    // Clients that speak OpenAI's API send these.
    {"response_format", kRefused, R"([{"type": "text"}])", "use output_config.format"},
    {"stop", kRefused, R"([[], ""])", "use stop_sequences"},
    {"reasoning_effort", kRefused, {}, "use output_config.effort"},
    {"max_completion_tokens", kRefused, {}, "use max_tokens"},
};

// These name the user, the priority and the cache of the next request, the last one edits of the history that
// save tokens (it is read as it was sent): none of them changes an answer.
constexpr auto kIgnoredFields = openai::ignored<14>(
    "metadata service_tier inference_geo speed betas anthropic_version cache_control user_profile_id "
    "workspace_id billing_policy fallback_credit_token fallbacks diagnostics context_management");

}  // namespace

const FieldTable& message_fields() {
  static const FieldTable table{
      {{{"messages", kMessages}, {"messages", kIgnoredFields}, openai::fields_elsewhere()}}};
  return table;
}

}  // namespace moesaic::anthropic
