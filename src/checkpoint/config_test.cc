// Every key of a config is honoured, harmless, or refused by name.
#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/config_reader.h"

namespace moesaic {
namespace {

// The config of openai/gpt-oss-20b on the hub, but for the list of layer types.
Json published() {
  return Json::parse(
      R"({"architectures": ["GptOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
    "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
    "initial_context_length": 4096, "initializer_range": 0.02, "intermediate_size": 2880,
    "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": 64,
    "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32,
    "output_router_logits": false, "pad_token_id": 199999,
    "quantization_config": {"modules_to_not_convert": ["lm_head"], "quant_method": "mxfp4"},
    "rms_norm_eps": 1e-05, "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
    "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false}, "rope_theta": 150000,
    "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": false,
    "transformers_version": "4.55.0.dev0", "use_cache": true, "vocab_size": 201088})");
}

Result<ModelConfig> read(const Json& json) { return config_from_hf(json, "config.json"); }
std::string message(const Json& json) { return read(json).status().message(); }

Json with(const char* key, const Json& value) {
  Json json = published();
  json[key] = value;
  return json;
}
Json with_rope(const char* key, const Json& value) {
  Json json = published();
  json["rope_scaling"][key] = value;
  return json;
}

TEST(ConfigKeys, PublishedFilesAreRead) {
  const auto config = read(published());
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->rope, RopeConfig());
  EXPECT_EQ(config->experts, 32);
  // Transformers and unsloth save it in this form.
  Json saved = published();
  saved.update(Json::parse(R"({"_name_or_path": "openai/gpt-oss-20b", "unsloth_version": "2025.8.1",
    "unsloth_fixed": true, "dtype": "bfloat16", "torch_dtype": "bfloat16", "auto_map": {"a": "b"},
    "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "num_labels": 2, "max_length": 20, "top_k": 50,
    "temperature": 1.0, "top_p": 1.0, "repetition_penalty": 1.0, "chunk_size_feed_forward": 0,
    "is_decoder": false, "return_dict": true, "use_bfloat16": false, "problem_type": null, "pruned_heads": {},
    "_attn_implementation_autoset": true, "swiglu_alpha": 1.702, "num_experts": 32,
    "model_name": "unsloth/gpt-oss-20b", "max_seq_length": 2048, "use_kernels": true,
    "partial_rotary_factor": 1.0, "bos_token_id": 199998, "eos_token_id": [200002, 199999]})"));
  EXPECT_EQ(message(saved), "");
}

TEST(ConfigKeys, WhatChangesTheResultIsRefusedByName) {
  const std::pair<const char*, Json> cases[] = {
      {"attention_bias", false},
      {"hidden_act", "gelu"},
      {"partial_rotary_factor", 0.5},
      {"use_sliding_window", false},
      {"norm_topk_prob", false},
      {"routed_scaling_factor", 2.5},
      {"final_logit_softcapping", 30},
      {"n_shared_experts", 1},
      {"attention_multiplier", 0.1},
      {"query_pre_attn_scalar", 256},
      {"nobody_knows_this", true},
      {"mlp_only_layers", {3}},
      {"num_experts", 16},
      {"experts_per_token", 2},
      {"tie_word_embeddings", "yes"},
      {"is_encoder_decoder", true},
      {"quantization_config", true},
      {"sliding_window", nullptr},
      {"swiglu_limit", "7"},
      {"rope_theta", "x"},
      {"original_max_position_embeddings", 8192},
  };
  for (const auto& [key, value] : cases)
    EXPECT_NE(message(with(key, value)).find(key), std::string::npos)
        << key << ": " << message(with(key, value));
  for (const char* nothing : {"null", "false", "0", "\"\"", "[]", "{}"})
    EXPECT_EQ(message(with("nobody_knows_this", Json::parse(nothing))), "") << nothing;
}

TEST(ConfigKeys, ValuesAreHonoured) {
  EXPECT_EQ(read(with("swiglu_alpha", 1.5))->swiglu_alpha, 1.5);
  EXPECT_EQ(read(with("swiglu_limit", 9))->swiglu_limit, 9);
  EXPECT_TRUE(read(with("tie_word_embeddings", true))->tied_head);
  EXPECT_EQ(read(with("layer_types", nullptr))->sliding[1], false);
  EXPECT_EQ(read(with("rope_theta", 10000))->rope.theta, 10000);
  Json full = with("sliding_window", nullptr);
  full["layer_types"] = Json(24, "full_attention");
  EXPECT_EQ(message(full), "");
  EXPECT_NE(message(with("experts_per_token", 2)).find("remove 'experts_per_token'"), std::string::npos);
}

TEST(ConfigKeys, WeightsOfMlx) {
  const Json mlx = {{"group_size", 32}, {"bits", 4}};
  for (const char* key : {"quantization", "quantization_config"})
    EXPECT_NE(message(with(key, mlx)).find("quantised by 'MLX' are not supported"), std::string::npos)
        << message(with(key, mlx));
  EXPECT_NE(message(with("quantization", "mxfp4")).find("'quantization' is not an object"),
            std::string::npos);
}

// transformers 4.57 to 5.24: GptOssConfig's own YaRN stands where a file says nothing.
TEST(ConfigRope, WhereNothingIsSaidItIsYarn) {
  for (const char* scaling : {"null", "{}"})
    EXPECT_EQ(read(with("rope_scaling", Json::parse(scaling)))->rope, RopeConfig());
  Json absent = published();
  absent.erase("rope_scaling");
  EXPECT_EQ(read(absent)->rope, RopeConfig());
  absent["rope_parameters"] = nullptr;
  EXPECT_EQ(read(absent)->rope, RopeConfig());
  absent["rope_theta"] = 500000;
  EXPECT_EQ(read(absent)->rope.theta, 500000);
  EXPECT_EQ(read(absent)->rope.factor, 32);
  absent["rope_parameters"] = Json::object();
  EXPECT_NE(message(absent).find("rope_parameters"), std::string::npos);
}

TEST(ConfigRope, PlainOnlyWhereItIsNamed) {
  const auto plain = read(with("rope_scaling", {{"rope_type", "default"}}));
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  EXPECT_EQ(plain->rope.factor, 1);
  EXPECT_EQ(make_rope_table(plain->rope, 64).attention_factor, 1);
  EXPECT_NE(message(with("rope_scaling", {{"factor", 32}})).find("'factor'"), std::string::npos);
}

TEST(ConfigRope, ParametersOfTransformers5) {
  Json json = published();
  Json rope = json["rope_scaling"];
  json.erase("rope_scaling"), json.erase("rope_theta");
  rope["rope_theta"] = 150000.0;
  json["rope_parameters"] = rope;
  EXPECT_EQ(read(json)->rope, RopeConfig()) << message(json);
  json["rope_parameters"] = {{"sliding_attention", rope}, {"full_attention", rope}};
  EXPECT_EQ(read(json)->rope, RopeConfig()) << message(json);
  json["rope_parameters"]["full_attention"]["rope_theta"] = 1e6;
  EXPECT_NE(message(json).find("sliding layers"), std::string::npos) << message(json);
  json["rope_parameters"]["full_attention"] = 3;
  EXPECT_NE(message(json).find("full_attention"), std::string::npos) << message(json);
  json["rope_parameters"] = {{"sliding_attention", rope}, {"chunked_attention", rope}};
  EXPECT_NE(message(json).find("chunked_attention"), std::string::npos) << message(json);
  json["rope_parameters"] = rope, json["rope_scaling"] = published()["rope_scaling"];
  EXPECT_EQ(message(json), "");
  json["rope_scaling"]["factor"] = 16;
  EXPECT_NE(message(json).find("not the same"), std::string::npos) << message(json);
}

// The formulas of transformers' _compute_yarn_parameters.
TEST(ConfigRope, AttentionFactor) {
  const auto factor = [](const Json& json) {
    const auto config = read(json);
    EXPECT_TRUE(config.ok()) << config.status().message();
    return config.ok() ? make_rope_table(config->rope, 64).attention_factor : 0;
  };
  const double own = 0.1 * std::log(32.0) + 1;
  EXPECT_DOUBLE_EQ(factor(published()), own);
  EXPECT_DOUBLE_EQ(factor(with_rope("attention_factor", 1.0)), 1.0);
  EXPECT_DOUBLE_EQ(factor(with_rope("attention_factor", nullptr)), own);
  EXPECT_DOUBLE_EQ(factor(with_rope("mscale", 0.7)), own);  // counts only with mscale_all_dim
  Json both = with_rope("mscale", 0.7);
  both["rope_scaling"]["mscale_all_dim"] = 1.3;
  EXPECT_DOUBLE_EQ(factor(both), (0.07 * std::log(32.0) + 1) / (0.13 * std::log(32.0) + 1));
  EXPECT_NE(message(with_rope("attention_factor", 0)).find("attention_factor"), std::string::npos);
  EXPECT_NE(message(with_rope("attention_factor", "1")).find("attention_factor"), std::string::npos);
}

TEST(ConfigRope, DefaultsAreThoseOfTransformers) {
  Json json = published();
  json["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 8}};
  const auto config = read(json);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->rope.original_context, 131072);  // max_position_embeddings
  EXPECT_TRUE(config->rope.truncate);
  EXPECT_EQ(config->rope.beta_fast, 32);
  json["rope_scaling"] = {{"type", "yarn"}, {"factor", nullptr}, {"original_max_position_embeddings", 4096}};
  EXPECT_EQ(read(json)->rope.factor, 32);  // max_position_embeddings / the original
  json["rope_scaling"] = {{"rope_type", "yarn"}};
  EXPECT_NE(message(json).find("'factor' is missing"), std::string::npos) << message(json);
}

TEST(ConfigRope, WhatIsNotHonouredIsRefused) {
  const std::pair<const char*, Json> cases[] = {{"partial_rotary_factor", 0.5},
                                                {"low_freq_factor", 1},
                                                {"short_factor", {1.0}},
                                                {"mrope_section", {1, 2}},
                                                {"rope_type", "llama3"},
                                                {"type", "linear"},
                                                {"truncate", "no"},
                                                {"factor", "x"},
                                                {"beta_fast", {1}},
                                                {"invented", "value"}};
  for (const auto& [key, value] : cases) EXPECT_NE(message(with_rope(key, value)), "") << key;
  EXPECT_NE(message(with("rope_scaling", "yarn")).find("rope_scaling"), std::string::npos);
  EXPECT_EQ(message(with_rope("partial_rotary_factor", 1.0)), "");
}

TEST(ConfigKeys, OfOpenAisOwn) {
  const Json own = Json::parse(R"({"num_hidden_layers": 24, "num_experts": 32, "experts_per_token": 4,
    "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880, "swiglu_limit": 7.0, "head_dim": 64,
    "num_attention_heads": 64, "num_key_value_heads": 8, "sliding_window": 128, "initial_context_length": 4096,
    "rope_theta": 150000, "rope_scaling_factor": 32.0, "rope_ntk_alpha": 1, "rope_ntk_beta": 32})");
  const auto config = config_from_original(own, "config.json");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->rope, RopeConfig());
  EXPECT_EQ(config->pad_token, 199999);
  Json without = own;
  without.erase("vocab_size");
  EXPECT_NE(config_from_original(without, "config.json").status().message().find("vocab_size"),
            std::string::npos);
  for (const char* key : {"swiglu_alpha", "layer_types", "rope_scaling", "invented"}) {
    Json other = own;
    other[key] = "x";
    EXPECT_NE(config_from_original(other, "config.json").status().message().find(key), std::string::npos)
        << key;
  }
}

class GgufKeys : public testing::Test {
 protected:
  GgufKeys() {
    const std::pair<const char*, int64_t> integers[] = {{"block_count", 24},
                                                        {"context_length", 131072},
                                                        {"embedding_length", 2880},
                                                        {"feed_forward_length", 2880},
                                                        {"expert_count", 32},
                                                        {"expert_used_count", 4},
                                                        {"attention.head_count", 64},
                                                        {"attention.head_count_kv", 8},
                                                        {"attention.key_length", 64},
                                                        {"attention.value_length", 64},
                                                        {"attention.sliding_window", 128},
                                                        {"vocab_size", 201088}};
    for (const auto& [key, value] : integers) set(key, value);
    set("rope.freq_base", 150000.0), set("rope.scaling.factor", 32.0);
    set("rope.scaling.original_context_length", int64_t{4096});
    set("rope.scaling.type", std::string("yarn"));
    file_.metadata["general.architecture"] = "gpt-oss";
    file_.tensors.tensors["token_embd.weight"] = {.dtype = "F16", .shape = {201088, 2880}};
  }
  void set(const std::string& key, GgufValue value) { file_.metadata["gpt-oss." + key] = std::move(value); }
  void erase(const std::string& key) { file_.metadata.erase("gpt-oss." + key); }
  std::string message() const { return config_from_gguf(file_, "m.gguf").status().message(); }
  // The line that a key with this value gets.
  std::string of(const std::string& key, GgufValue value) {
    const GgufFile before = file_;
    set(key, std::move(value));
    std::string said = message();
    file_ = before;
    return said;
  }

  GgufFile file_;
};

TEST_F(GgufKeys, PublishedOnesAreRead) {
  const auto config = config_from_gguf(file_, "m.gguf");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->rope, RopeConfig());
  EXPECT_EQ(of("rope.dimension_count", int64_t{64}), "");
  EXPECT_EQ(of("expert_weights_scale", 1.0), "");
  EXPECT_EQ(of("attention.sliding_window_pattern", std::vector<int64_t>{1, 0, 1, 0}), "");
  EXPECT_EQ(of("attention.sliding_window_pattern", int64_t{2}), "");
  EXPECT_EQ(of("rope.scaling.yarn_ext_factor", 1.0), "");
  EXPECT_EQ(of("expert_shared_count", int64_t{0}), "");
  EXPECT_EQ(of("rope.scaling.finetuned", true), "");
  set("attention.layer_norm_rms_epsilon", 1e-6);
  EXPECT_EQ(config_from_gguf(file_, "m.gguf")->rms_eps, 1e-6);
}

TEST_F(GgufKeys, WhatChangesTheResultIsRefusedByName) {
  const std::pair<const char*, GgufValue> cases[] = {
      {"attention.value_length", int64_t{32}},
      {"rope.dimension_count", int64_t{32}},
      {"rope.freq_base_swa", 10000.0},
      {"rope.scaling.attn_factor", 0.5},
      {"rope.scaling.yarn_log_multiplier", 0.1},
      {"expert_weights_scale", 2.5},
      {"expert_gating_func", int64_t{2}},
      {"expert_shared_count", int64_t{1}},
      {"attention.scale", 0.1},
      {"attention.causal", false},
      {"attn_logit_softcapping", 50.0},
      {"attention.sliding_window_pattern", std::vector<int64_t>{0, 1}},
      {"attention.sliding_window_pattern", int64_t{4}},
      {"invented", std::string("x")}};
  for (const auto& [key, value] : cases) EXPECT_NE(of(key, value).find(key), std::string::npos) << key;
}

TEST_F(GgufKeys, AnAdapterIsNoModel) {
  file_.metadata["general.type"] = "model";
  EXPECT_EQ(message(), "");
  file_.metadata["general.type"] = "adapter";
  EXPECT_EQ(message(), "m.gguf: a LoRA adapter, not a model; run: -m BASE-MODEL --lora m.gguf");
}

TEST_F(GgufKeys, ScalingOfRope) {
  EXPECT_NE(of("rope.scaling.type", std::string("linear")).find("linear"), std::string::npos);
  EXPECT_NE(of("rope.scaling.type", std::string("longrope")).find("longrope"), std::string::npos);
  erase("rope.scaling.type");
  EXPECT_NE(message().find("linear"), std::string::npos) << message();  // llama.cpp's default
  erase("rope.scaling.factor");
  EXPECT_EQ(config_from_gguf(file_, "m.gguf")->rope.factor, 1);
  set("rope.scaling.type", std::string("yarn"));
  EXPECT_NE(message().find("rope.scaling.factor"), std::string::npos) << message();
  set("rope.scaling.factor", 32.0), erase("rope.scaling.original_context_length");
  EXPECT_EQ(config_from_gguf(file_, "m.gguf")->rope.original_context, 131072);
}

}  // namespace
}  // namespace moesaic
