#include "checkpoint/named_tensors.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>

namespace moesaic {
namespace {

constexpr const char* kConfig = R"({"model_type": "gpt_oss", "num_hidden_layers": 1, "hidden_size": 64,
  "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "num_local_experts": 2,
  "num_experts_per_tok": 1, "vocab_size": 10, "sliding_window": 128, "max_position_embeddings": 4096,
  "layer_types": ["full_attention"], "rope_theta": 150000})";

// All point into one piece of memory, as nothing is read.
std::vector<NamedTensor> tensors_of(const std::byte* data) {
  const std::string layer = "model.layers.0.", attention = layer + "self_attn.",
                    experts = layer + "mlp.experts.";
  std::vector<NamedTensor> tensors;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, const char* dtype = "BF16") {
    tensors.push_back({name, dtype, std::move(shape), data});
  };
  add("model.embed_tokens.weight", {10, 64}), add("model.norm.weight", {64}), add("lm_head.weight", {10, 64});
  add(layer + "input_layernorm.weight", {64}), add(layer + "post_attention_layernorm.weight", {64});
  add(attention + "q_proj.weight", {64, 64}), add(attention + "q_proj.bias", {64});
  for (const char* name : {"k", "v"})
    add(attention + name + "_proj.weight", {32, 64}), add(attention + name + "_proj.bias", {32});
  add(attention + "o_proj.weight", {64, 64}), add(attention + "o_proj.bias", {64});
  add(attention + "sinks", {2});
  add(layer + "mlp.router.weight", {2, 64}), add(layer + "mlp.router.bias", {2});
  add(experts + "gate_up_proj_blocks", {2, 64, 2, 16}, "U8");
  add(experts + "gate_up_proj_scales", {2, 64, 2}, "U8");
  add(experts + "down_proj_blocks", {2, 64, 1, 16}, "U8"),
      add(experts + "down_proj_scales", {2, 64, 1}, "U8");
  add(experts + "gate_up_proj_bias", {2, 64}), add(experts + "down_proj_bias", {2, 64});
  return tensors;
}

class NamedTensors : public testing::Test {
 protected:
  std::string error() const { return model_of_tensors(config, tensors).status().message(); }
  NamedTensor& tensor(const std::string& end) {
    for (NamedTensor& t : tensors) {
      if (t.name.ends_with(end)) return t;
    }
    return tensors.front();
  }
  void expect(const std::string& part) const { EXPECT_NE(error().find(part), std::string::npos) << error(); }

  std::byte memory[64] = {};
  std::string config = kConfig;
  std::vector<NamedTensor> tensors = tensors_of(memory);
};

TEST_F(NamedTensors, BecomeAModel) {
  const Result<NamedModel> model = model_of_tensors(config, tensors);
  ASSERT_EQ(model.status().message(), "");
  EXPECT_EQ(model.value().config.experts, 2);
  const LayerWeights& layer = model.value().weights.layers.at(0);
  EXPECT_EQ(layer.q.data, memory);
  EXPECT_EQ(layer.up.first.data, memory + 32);  // a row of 64 codes behind gate's
  EXPECT_FALSE(model.value().weights.release);
}

TEST_F(NamedTensors, OfAnotherShapeOrTypeAreNamed) {
  tensor("k_proj.weight").shape = {31, 64};
  expect("self_attn.k_proj.weight' is [31, 64], the config asks for [32, 64]");
  tensor("k_proj.weight").dtype = "I64";
  expect("k_proj.weight' is empty, or its type 'I64'");
}

TEST_F(NamedTensors, ThatAreMissingOrTwiceThereAreNamed) {
  tensors.push_back(tensors.back());
  expect("down_proj_bias' is given twice");
  tensors.resize(tensors.size() - 2);
  expect("down_proj_bias' is missing");
  tensors = tensors_of(nullptr);
  expect("is empty");
  config = "{";
  expect("config");
}

}  // namespace
}  // namespace moesaic
