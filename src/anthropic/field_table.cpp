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
    {"tools"},
    {"tool_choice", kRead, {}, {}, &kToolChoiceMembers},
    {"thinking", kRead, {}, {}, &kThinkingMembers},
    {"output_config", kRead, {}, {}, &kOutputConfigMembers},
    {"output_format", kRead, {}, {}, &kFormatMembers},
    // These name the user, the priority and the cache of the next request: none of them changes an answer.
    {"metadata", kIgnored},
    {"service_tier", kIgnored},
    {"inference_geo", kIgnored},
    {"speed", kIgnored},
    {"betas", kIgnored},
    {"anthropic_version", kIgnored},
    {"cache_control", kIgnored},
    {"user_profile_id", kIgnored},
    {"workspace_id", kIgnored},
    {"billing_policy", kIgnored},
    {"fallback_credit_token", kIgnored},
    {"fallbacks", kIgnored},
    {"diagnostics", kIgnored},
    // Edits of the history that save tokens: it is read as it was sent.
    {"context_management", kIgnored},
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

}  // namespace

const FieldTable& message_fields() {
  static const FieldTable table{{{{"messages", kMessages}, openai::fields_elsewhere()}}};
  return table;
}

}  // namespace moesaic::anthropic
