// Adapters that are damaged, do not fit or ask for more than there is: one line each. Numbers are compared
// with peft in tests/lora_test.cc.
#include "checkpoint/lora.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/find_model.h"
#include "checkpoint/lora_config.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const ModelConfig kConfig{.layers = 2,
                          .hidden = 64,
                          .intermediate = 32,
                          .heads = 2,
                          .kv_heads = 1,
                          .head_dim = 32,
                          .experts = 3,
                          .experts_per_token = 2,
                          .vocab = 8,
                          .window = 4,
                          .sliding = {true, false},
                          .max_context = 64};

class LoraFolder : public ::testing::Test {
 protected:
  LoraFolder() {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    weights_.layers.resize(2);
    for (LayerWeights& w : weights_.layers)
      w.router = dense_view(Format::kF32, kConfig.experts, kConfig.hidden,
                            reinterpret_cast<const std::byte*>(router_.data()));
  }
  ~LoraFolder() override { fs::remove_all(folder_); }

  void config(const json& changes = json::object()) {
    json j = {{"peft_type", "LORA"},
              {"r", 2},
              {"lora_alpha", 4},
              {"bias", "none"},
              {"use_dora", false},
              {"modules_to_save", nullptr},
              {"loftq_config", json::object()},
              {"target_modules", {"q_proj"}}};
    j.update(changes);
    std::ofstream(folder_ / "adapter_config.json") << j.dump();
  }
  void add(const std::string& name, std::vector<int64_t> shape, float value = 0.5F,
           const std::string& dtype = "F32") {
    const size_t bytes = dtype == "F32" ? 4 : 8;
    size_t count = 1;
    for (const int64_t d : shape) count *= static_cast<size_t>(d);
    header_[name] = {
        {"dtype", dtype}, {"shape", shape}, {"data_offsets", {data_.size(), data_.size() + count * bytes}}};
    std::string one(bytes, '\0');
    std::memcpy(one.data(), &value, sizeof value);
    for (size_t i = 0; i < count; ++i) data_ += one;
  }
  void add_pair(const std::string& module, int64_t rows, int64_t rank, int64_t cols) {
    add(module + ".lora_A.weight", {rank, cols}), add(module + ".lora_B.weight", {rows, rank});
  }
  void write() {
    const std::string head = header_.is_null() ? "{}" : header_.dump();
    const uint64_t size = head.size();
    std::ofstream file(folder_ / "adapter_model.safetensors", std::ios::binary);
    file.write(reinterpret_cast<const char*>(&size), sizeof size) << head << data_;
  }
  std::string error() {
    write();
    const std::vector<std::string> adapters = {folder_.string()};
    return apply_lora(adapters, kConfig, weights_).message();
  }
  void expect_error(const std::string& part) {
    const std::string message = error();
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }

  fs::path folder_ = fs::path(::testing::TempDir()) / "moesaic_lora_test";
  std::vector<float> router_ = std::vector<float>(3 * 64, 1.0F);
  ModelWeights weights_;
  json header_;
  std::string data_;
};

const std::string kQuery = "base_model.model.model.layers.1.self_attn.q_proj";

TEST_F(LoraFolder, RowsAndRanksStandWhereTheyBelong) {
  config();
  add_pair("base_model.model.model.layers.1.self_attn.k_proj", 32, 2, 64);
  ASSERT_EQ(error(), "");
  ASSERT_EQ(weights_.adapters.size(), 2U);
  EXPECT_TRUE(weights_.adapters[0].qkv.empty() && weights_.adapters[1].o.empty());
  const LowRank& low = weights_.adapters[1].qkv;
  ASSERT_EQ(low.down.rows, 32);  // the rank, padded
  ASSERT_EQ(low.up.rows, 64 + 2 * 32);
  std::vector<float> row(32);
  for (int64_t r = 0; r < low.up.rows; ++r) {
    read_row(low.up, r, row);
    const bool mine = r >= 64 && r < 96;
    EXPECT_EQ(row[1], mine ? 1.0F : 0.0F) << r;  // 0.5 times alpha / r
    EXPECT_EQ(row[2], 0.0F) << r;
  }
}

TEST_F(LoraFolder, RouterIsMerged) {
  config();
  add_pair("base_model.model.model.layers.0.mlp.router", 3, 2, 64);
  ASSERT_EQ(error(), "");
  std::vector<float> row(64);
  read_row(weights_.layers[0].router, 2, row);
  EXPECT_EQ(row[5], 2.0F);  // 1 + 2 * (2 * 0.5 * 0.5)
  read_row(weights_.layers[1].router, 2, row);
  EXPECT_EQ(row[5], 1.0F);
}

TEST_F(LoraFolder, TensorsThatAreNotApplied) {
  config();
  const struct {
    std::string name;
    std::vector<int64_t> shape;
    const char* says;
  } kCases[] = {
      {"base_model.model.model.embed_tokens.lora_embedding_A", {2, 8}, "is not a LoRA factor"},
      {"base_model.model.lm_head.weight", {8, 64}, "is not a LoRA factor"},
      {kQuery + ".lora_magnitude_vector.weight", {64}, "is not a LoRA factor"},
      {kQuery + ".lora_A.weight", {2, 64}, "has no lora_B"},
      {kQuery + ".lora_B.weight", {64, 2}, "has no lora_A"},
  };
  for (const auto& c : kCases) {
    header_ = {}, data_.clear();
    add(c.name, c.shape);
    expect_error(c.says);
  }
}

TEST_F(LoraFolder, ModulesThatCannotBeAdapted) {
  config();
  for (const char* module : {"base_model.model.lm_head", "base_model.model.model.layers.2.self_attn.q_proj",
                             "base_model.model.model.layers.-1.self_attn.q_proj",
                             "base_model.model.model.layers.1.mlp.experts.gate_up_projs.0",
                             "base_model.model.model.layers.99999999999999999999.self_attn.q_proj"}) {
    header_ = {}, data_.clear();
    add_pair(module, 64, 2, 64);
    expect_error("is not a matrix that can be adapted in this model");
  }
}

TEST_F(LoraFolder, SizesThatAreNotTheModels) {
  config();
  add_pair(kQuery, 65, 2, 64);
  expect_error("are [2, 64] and [65, 2], which is not this model's size");
  header_ = {}, data_.clear();
  add_pair(kQuery, 64, 3, 64);
  expect_error("have rank 3, adapter_config.json says 2");
  header_ = {}, data_.clear();
  add(kQuery + ".lora_A.weight", {2, 64}), add(kQuery + ".lora_B.weight", {64, 3});
  expect_error("which is not this model's size");
}

TEST_F(LoraFolder, AModuleOnce) {
  config();
  add_pair(kQuery, 64, 2, 64);
  add_pair("base_model.model.model.layers.01.self_attn.q_proj", 64, 2, 64);
  expect_error("is adapted twice");
  header_ = {}, data_.clear();
  add_pair("base_model.model.model.layers.0.mlp.experts", 64, 6, 64);
  add_pair("base_model.model.model.layers.0.mlp.experts.base_layer", 64, 6, 64);
  expect_error("is adapted twice");
}

TEST_F(LoraFolder, Values) {
  config();
  add(kQuery + ".lora_A.weight", {2, 64}, NAN), add(kQuery + ".lora_B.weight", {64, 2});
  expect_error("hold a NaN or an infinity");
  header_ = {}, data_.clear();
  add(kQuery + ".lora_A.weight", {2, 64}, 0.5F, "I64"), add(kQuery + ".lora_B.weight", {64, 2});
  expect_error("are I64, expected F32, F16 or BF16");
  header_ = {}, data_.clear();
  config({{"lora_alpha", 1e38}});
  add(kQuery + ".lora_A.weight", {2, 64}), add(kQuery + ".lora_B.weight", {64, 2}, 100.0F);
  expect_error("beyond F32");
}

TEST_F(LoraFolder, ConfigsThatAskForMore) {
  add_pair(kQuery, 64, 2, 64);
  const std::pair<json, const char*> kCases[] = {
      {{{"use_dora", true}}, "'use_dora' is true, which is not supported"},
      {{{"bias", "all"}}, "'bias' is \"all\""},
      {{{"lora_bias", true}}, "'lora_bias' is true"},
      {{{"modules_to_save", {"lm_head"}}}, "'modules_to_save' is [\"lm_head\"]"},
      {{{"fan_in_fan_out", true}}, "'fan_in_fan_out'"},
      {{{"layer_replication", {{0, 1}}}}, "'layer_replication'"},
      {{{"trainable_token_indices", {1}}}, "'trainable_token_indices'"},
      {{{"alora_invocation_tokens", {1}}}, "'alora_invocation_tokens'"},
      {{{"a_field_of_next_year", "on"}}, "'a_field_of_next_year'"},
      {{{"peft_type", "IA3"}}, "'peft_type' is \"IA3\""},
      {{{"init_lora_weights", "pissa_niter_16"}}, "changes the base model's weights"},
      {{{"r", 0}}, "r is 0, expected 1 to"},
      {{{"r", "2"}}, "r is \"2\""},
      {{{"use_rslora", "true"}}, "use_rslora is \"true\""},
      {{{"lora_alpha", "4"}}, "lora_alpha is \"4\""},
      {{{"rank_pattern", {{"layers\\..*", 2}}}}, "only names of modules are supported there"},
      {{{"alpha_pattern", {{"q_proj", "x"}}}}, "alpha_pattern of 'q_proj' is \"x\""},
      {{{"alpha_pattern", 7}}, "'alpha_pattern' is not an object"},
  };
  for (const auto& [changes, says] : kCases) {
    config(changes);
    expect_error(says);
  }
  std::ofstream(folder_ / "adapter_config.json") << "[]";
  expect_error("not the config of an adapter");
  std::ofstream(folder_ / "adapter_config.json") << "{";
  expect_error("not valid JSON");
}

TEST_F(LoraFolder, Folders) {
  config();
  expect_error("it holds no tensors");
  const std::vector<std::string> adapters = {folder_.string()};
  fs::remove(folder_ / "adapter_model.safetensors");
  std::ofstream(folder_ / "adapter_model.bin") << "pickle";
  EXPECT_NE(apply_lora(adapters, kConfig, weights_).message().find("safe_serialization=True"),
            std::string::npos);
  fs::remove(folder_ / "adapter_config.json");
  EXPECT_NE(apply_lora(adapters, kConfig, weights_).message().find("no adapter_config.json"),
            std::string::npos);
  EXPECT_EQ(apply_lora(std::vector<std::string>{"/no/such"}, kConfig, weights_).code(),
            StatusCode::kNotFound);
}

TEST_F(LoraFolder, Scales) {
  EXPECT_EQ(lora_choice("a/b")->folder, "a/b");
  EXPECT_EQ(lora_choice("a/b:0.25")->scale, 0.25);
  EXPECT_EQ(lora_choice("a/b:-2")->folder, "a/b");
  for (const char* bad : {"", ":", ":1", "a:", "a:x", "a:1x", "a:nan", "a:inf", "a:1e999"})
    EXPECT_FALSE(lora_choice(bad).ok()) << bad;
  const std::string colon = folder_.string() + "/b:7";  // there is such a folder
  fs::create_directories(colon);
  EXPECT_EQ(lora_choice(colon)->folder, colon);
}

TEST_F(LoraFolder, BesideTheModel) {
  config({{"base_model_name_or_path", "openai/gpt-oss-20b"}});
  const std::string only = find_model(folder_.string(), {}).status().message();
  EXPECT_NE(only.find("a LoRA adapter for openai/gpt-oss-20b, not a model"), std::string::npos) << only;
  EXPECT_NE(only.find("-m openai/gpt-oss-20b --lora " + folder_.string()), std::string::npos) << only;
  std::ofstream(folder_ / "config.json") << "{}";
  EXPECT_NE(unused_adapter(folder_.string(), {}).find("not applied"), std::string::npos);
  const std::vector<std::string> asked = {folder_.string() + "/../moesaic_lora_test:0.5"};
  EXPECT_EQ(unused_adapter(folder_.string(), asked), "");
  fs::remove(folder_ / "adapter_config.json");
  EXPECT_EQ(unused_adapter(folder_.string(), {}), "");
}

TEST_F(LoraFolder, InTheCache) {
  const fs::path snapshot = folder_ / "models--me--tuned" / "snapshots" / "abc";
  fs::create_directories(snapshot);
  std::ofstream(snapshot / "adapter_config.json") << "{}";
  EXPECT_EQ(find_adapter("me/tuned", {.hub = folder_.string()}).value(), snapshot.string());
  const std::string absent = find_adapter("me/other", {.hub = folder_.string()}).status().message();
  EXPECT_NE(absent.find("moesaic pull me/other"), std::string::npos) << absent;
}

// peft takes the first pattern that is the module's name or its end after a dot.
TEST(LoraPatterns, Match) {
  const auto c = lora_config(OrderedJson::parse(R"({"r": 8, "lora_alpha": 16, "use_rslora": true,
      "rank_pattern": {"q_proj": 4, "^model.layers.0.self_attn.k_proj": 2, "^self_attn.v_proj": 3},
      "alpha_pattern": {"1.self_attn.q_proj": 32, "proj": 99}})"),
                             "test");
  ASSERT_TRUE(c.ok()) << c.status().message();
  const LoraConfig& lora = c.value();
  EXPECT_EQ(rank_of(lora, "model.layers.3.self_attn.q_proj"), 4);
  EXPECT_EQ(rank_of(lora, "model.layers.0.self_attn.k_proj"), 2);
  EXPECT_EQ(rank_of(lora, "model.layers.1.self_attn.k_proj"), 8);
  EXPECT_EQ(rank_of(lora, "model.layers.1.self_attn.v_proj"), 8);
  EXPECT_DOUBLE_EQ(scale_of(lora, "model.layers.1.self_attn.q_proj"), 32 / 2.0);
  EXPECT_DOUBLE_EQ(scale_of(lora, "model.layers.11.self_attn.q_proj"), 16 / 2.0);
  // The first of the file, which need not be the first of the alphabet.
  const auto first = lora_config(
      OrderedJson::parse(R"({"alpha_pattern": {"self_attn.q_proj": 4, "0.self_attn.q_proj": 32}})"), "test");
  ASSERT_TRUE(first.ok()) << first.status().message();
  EXPECT_DOUBLE_EQ(scale_of(first.value(), "model.layers.0.self_attn.q_proj"), 4 / 8.0);
}

}  // namespace
}  // namespace moesaic
