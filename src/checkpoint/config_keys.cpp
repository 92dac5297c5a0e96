#include "checkpoint/config_keys.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"

namespace moesaic {
namespace {

// By letter. Attributes that transformers 4.55 to 5.24 give every model's config, or that older ones and
// other programs leave there: of training, of how it was saved, of a tokenizer, and defaults of generation,
// which requests name themselves.
constexpr const char* kHarmlessKeys[] = {
    "add_cross_attention",
    "architectures",
    "assistant_confidence_threshold",
    "assistant_early_exit",
    "assistant_lookbehind",
    "attention_dropout",
    "attn_implementation",
    "auto_map",
    "bad_words_ids",
    "base_model_name_or_path",
    "begin_suppress_tokens",
    "bos_token",
    "bos_token_id",
    "cache_implementation",
    "chat_template",
    "chunk_size_feed_forward",
    "compile_config",
    "cross_attention_hidden_size",
    "decoder_start_token_id",
    "disable_compile",
    "diversity_penalty",
    "do_sample",
    "dola_layers",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "encoder_repetition_penalty",
    "eos_token",
    "eos_token_id",
    "epsilon_cutoff",
    "eta_cutoff",
    "experts_implementation",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "force_words_ids",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "generation_config",
    "gradient_checkpointing",
    "guidance_scale",
    "id2label",
    "initial_context_length",
    "initializer_range",
    "is_assistant",
    "is_decoder",
    "is_encoder_decoder",
    "keys_to_ignore_at_inference",
    "label2id",
    "length_penalty",
    "low_memory",
    "max_length",
    "max_matching_ngram_size",
    "max_new_tokens",
    "max_seq_length",
    "max_time",
    "min_length",
    "min_new_tokens",
    "min_p",
    "model_max_length",
    "model_name",
    "model_type",
    "name_or_path",
    "no_repeat_ngram_size",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_logits",
    "output_router_logits",
    "output_scores",
    "pad_token",
    "pad_token_id",
    "padding_side",
    "penalty_alpha",
    "prefill_chunk_size",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "prompt_lookup_num_tokens",
    "remove_invalid_values",
    "renormalize_logits",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "revision",
    "router_aux_loss_coef",
    "sep_token_id",
    "sequence_bias",
    "stop_strings",
    "suppress_tokens",
    "target_lookbehind",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "token_healing",
    "tokenizer_class",
    "top_h",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "trl_version",
    "trust_remote_code",
    "typical_p",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
    "use_kernels",
    "use_return_dict",
    "watermarking_config",
};

constexpr auto kAsView = [](const char* text) { return std::string_view(text); };
static_assert(std::ranges::is_sorted(kHarmlessKeys, {}, kAsView));

constexpr const char* kHfKeys[] = {"experts_per_token",
                                   "head_dim",
                                   "hidden_size",
                                   "intermediate_size",
                                   "layer_types",
                                   "max_position_embeddings",
                                   "num_attention_heads",
                                   "num_experts",
                                   "num_experts_per_tok",
                                   "num_hidden_layers",
                                   "num_key_value_heads",
                                   "num_local_experts",
                                   "original_max_position_embeddings",
                                   "quantization_config",
                                   "rms_norm_eps",
                                   "rope_parameters",
                                   "rope_scaling",
                                   "rope_theta",
                                   "sliding_window",
                                   "swiglu_alpha",
                                   "swiglu_limit",
                                   "tie_word_embeddings",
                                   "vocab_size"};
constexpr FixedKey kHfFixed[] = {
    {"attention_bias", "[true]"},       {"hidden_act", R"(["silu", "swish"])"},
    {"partial_rotary_factor", "[1]"},   {"use_sliding_window", "[true]"},
    {"norm_topk_prob", "[true]"},       {"routed_scaling_factor", "[1]"},
    {"decoder_sparse_step", "[1]"},     {"is_encoder_decoder", "[false]"},
    {"add_cross_attention", "[false]"}, {"pruned_heads", "[{}]"},
};

constexpr const char* kOriginalKeys[] = {
    "experts_per_token",   "head_dim",       "hidden_size",       "initial_context_length",
    "intermediate_size",   "num_experts",    "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "rope_ntk_alpha", "rope_ntk_beta",     "rope_scaling_factor",
    "rope_theta",          "sliding_window", "swiglu_limit",      "vocab_size"};

constexpr FixedKey kEagle3Fixed[] = {{"attention_bias", "[false]"},          {"mlp_bias", "[false]"},
                                     {"hidden_act", R"(["silu", "swish"])"}, {"partial_rotary_factor", "[1]"},
                                     {"is_encoder_decoder", "[false]"},      {"pruned_heads", "[{}]"}};

constexpr FixedKey kEagle3Flags[] = {{"use_last_layernorm", "[true]"},
                                     {"use_input_layernorm_in_first_layer", "[true]"},
                                     {"use_mtp_layernorm", "[false]"},
                                     {"parallel_draft_step", "[1]"}};
constexpr const char* kEagle3Norms[] = {"norm_before_residual", "norm_before_fc", "norm_output"};

Status unsupported(const std::string& key, const Json& value, const std::string& name) {
  return error(
      StatusCode::kUnsupported,
      "{}: '{}' is {}, which is not supported; if it does not change the model, remove it from the file",
      name, key.substr(0, 60), shown(value));
}

bool is_harmless(std::string_view key) {
  return key.starts_with('_') || std::ranges::binary_search(kHarmlessKeys, key, {}, kAsView);
}

}  // namespace

Status check_fixed(const Json& json, std::span<const FixedKey> fixed, const std::string& name) {
  for (const FixedKey& f : fixed) {
    const auto it = json.find(f.key);
    if (it == json.end() || it->is_null()) continue;
    const Json values = Json::parse(f.values);
    if (std::ranges::find(values, *it) == values.end())
      return error(StatusCode::kUnsupported, "{}: '{}' is {}, which is not supported; expected {}", name,
                   f.key, shown(*it), values[0].dump());
  }
  return {};
}

Status check_keys(const Json& json, std::span<const char* const> read, std::span<const FixedKey> fixed,
                  const std::string& name) {
  if (!json.is_object()) return invalid("{}: not a JSON object", name);
  RETURN_IF_ERROR(check_fixed(json, fixed, name));
  for (const auto& [key, value] : json.items()) {
    const bool known = std::ranges::find(read, key) != read.end() ||
                       std::ranges::find(fixed, key, &FixedKey::key) != fixed.end() || is_harmless(key);
    if (!known && !asks_for_nothing(value)) return unsupported(key, value, name);
  }
  return {};
}

Status check_hf_keys(const Json& json, const std::string& name) {
  return check_keys(json, kHfKeys, kHfFixed, name);
}
Status check_original_keys(const Json& json, const std::string& name) {
  return check_keys(json, kOriginalKeys, {}, name);
}
Status check_eagle3_keys(const Json& json, const std::string& name) {
  return check_fixed(json, kEagle3Fixed, name);
}
Status check_eagle3_flags(const Json& json, const std::string& name) {
  RETURN_IF_ERROR(check_fixed(json, kEagle3Flags, name));
  for (const auto& [key, value] : json.items()) {
    const bool read =
        !key.starts_with("norm_") || std::ranges::find(kEagle3Norms, key) != std::end(kEagle3Norms);
    if (!read && !asks_for_nothing(value)) return unsupported(key, value, name);
  }
  return {};
}

}  // namespace moesaic
