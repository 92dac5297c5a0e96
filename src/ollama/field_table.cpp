// Source, as of November 2026: the request types of Ollama (api/types.go of its repository).
#include "ollama/field_table.h"

namespace moesaic::ollama {
namespace {

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
    // How the model is loaded and computed: the server was started with that.
    {"num_ctx", kIgnored},
    {"num_batch", kIgnored},
    {"num_gpu", kIgnored},
    {"main_gpu", kIgnored},
    {"num_thread", kIgnored},
    {"num_keep", kIgnored},
    {"use_mmap", kIgnored},
    {"use_mlock", kIgnored},
    {"low_vram", kIgnored},
    {"numa", kIgnored},
    {"f16_kv", kIgnored},
    {"vocab_only", kIgnored},
    {"logits_all", kIgnored},
    {"draft_num_predict", kIgnored},
    {"mirostat_tau", kIgnored},
    {"mirostat_eta", kIgnored},
    {"typical_p", kRefused, "[1]", "use top_p or min_p"},
    {"tfs_z", kRefused, "[1]", "use top_p or min_p"},
    {"mirostat", kRefused, "[0]", "use top_p or min_p"},
    {"penalize_newline", kRefused, "[false]", "use repeat_penalty"},
};
constexpr FieldTable kOptionsTable{{{{"`options`", kOptions}}}};

constexpr KnownField kCommon[] = {
    {"model"},
    {"stream"},
    {"think"},
    {"format"},
    {"options", kRead, {}, {}, &kOptionsTable},
    {"logprobs", kRefused, "[false]", "use /v1/chat/completions"},
    {"top_logprobs", kRefused, "[0]", "use /v1/chat/completions"},
    {"keep_alive", kIgnored},
    {"shift", kIgnored},
    {"_debug_render_only", kRefused, "[false]", "POST /apply-template shows a prompt"},
    {"truncate", kIgnored},
};

constexpr KnownField kChat[] = {
    {"messages"},
    {"tools"},
};

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

}  // namespace

const FieldTable& chat_fields() {
  static constexpr FieldTable kTable{{{{"/api/chat", kChat}, {"both", kCommon}}}};
  return kTable;
}

const FieldTable& generate_fields() {
  static constexpr FieldTable kTable{{{{"/api/generate", kGenerate}, {"both", kCommon}}}};
  return kTable;
}

const FieldTable& option_fields() { return kOptionsTable; }

}  // namespace moesaic::ollama
