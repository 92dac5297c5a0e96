// Source, as of November 2026: the request types of Ollama (api/types.go of its repository).
#include "ollama/field_table.h"

#include <span>
#include <vector>

namespace moesaic::ollama {
namespace {

using openai::FieldPart;
using openai::FieldTable;
using openai::KnownField;
using enum openai::Treatment;

constexpr KnownField kOptions[] = {
    {"num_predict"},
    {"temperature"},
    {"top_k"},
    {"top_p"},
    {"min_p"},
    {"seed"},
    {"stop"},
    {"repeat_penalty"},
    {"repeat_last_n"},
    {"presence_penalty"},
    {"frequency_penalty"},
    {"typical_p", kRefused, "[1]", "use top_p or min_p"},
    {"tfs_z", kRefused, "[1]", "use top_p or min_p"},
    {"mirostat", kRefused, "[0]", "use top_p or min_p"},
    {"penalize_newline", kRefused, "[false]", "use repeat_penalty"},
};

// These say how the model is loaded and computed, which was settled when the server was started.
constexpr auto kIgnoredOptions = openai::ignored<16>(
    "num_ctx num_batch num_gpu main_gpu num_thread num_keep use_mmap use_mlock low_vram numa f16_kv "
    "vocab_only logits_all draft_num_predict mirostat_tau mirostat_eta");

std::span<const KnownField> common_fields() {
  static const KnownField fields[] = {
      {"model"},
      {"stream"},
      {"think"},
      {"format"},
      {"options", kRead, {}, {}, &option_fields()},
      {"logprobs"},
      {"top_logprobs"},
      {"keep_alive", kIgnored},
      {"shift", kIgnored},
      {"_debug_render_only", kRefused, "[false]", "POST /apply-template shows a prompt"},
      {"truncate", kIgnored},
      // Clients that speak OpenAI's API send these.
      {"response_format", kRefused, R"([{"type": "text"}])", "use format"},
      {"reasoning_effort", kRefused, {}, "use think"},
      {"max_tokens", kRefused, "[-1]", "use num_predict in options"},
  };
  return fields;
}

constexpr KnownField kGenerate[] = {
    {"prompt"},
    {"system"},
    {"raw"},
    {"suffix", kRefused, R"([""])", "the model was not trained to fill in"},
    {"template", kRefused, R"([""])", "the prompt is harmony's"},
    {"context", kRefused, "[[]]", "send the conversation to /api/chat"},
    {"images", kRefused, "[[]]", "the model reads text"},
    {"width", kRefused, "[0]", "the model writes text"},
    {"height", kRefused, "[0]", "the model writes text"},
    {"steps", kRefused, "[0]", "the model writes text"},
};

// Members of `options` that stand at the top of a request.
const FieldPart& misplaced_options() {
  static const std::vector<KnownField> fields = [] {
    std::vector<KnownField> all;
    for (const KnownField& option : kOptions) {
      const KnownField* elsewhere = FieldTable{{{openai::fields_elsewhere()}}}.find(option.name);
      all.push_back({.name = option.name,
                     .treatment = kRefused,
                     .accepted = elsewhere == nullptr ? option.accepted : elsewhere->accepted,
                     .note = "it belongs into options"});
    }
    return all;
  }();
  static const FieldPart part{.title = {}, .fields = fields};
  return part;
}

}  // namespace

const FieldTable& chat_fields() {
  static const KnownField chat[] = {
      {"messages"},
      {"tools", kRead, {}, {}, &openai::tool_fields()},
  };
  static const FieldTable table{
      {{{"/api/chat", chat}, {"both", common_fields()}, misplaced_options(), openai::fields_elsewhere()}}};
  return table;
}

const FieldTable& generate_fields() {
  static const FieldTable table{{{{"/api/generate", kGenerate},
                                  {"both", common_fields()},
                                  misplaced_options(),
                                  openai::fields_elsewhere()}}};
  return table;
}

const FieldTable& option_fields() {
  static const FieldTable table{
      {{{"`options`", kOptions}, {"`options`", kIgnoredOptions}, openai::fields_elsewhere()}}};
  return table;
}

}  // namespace moesaic::ollama
