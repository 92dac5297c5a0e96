// Adapters that are damaged, do not fit or ask for more than there is: one line each. Numbers are compared
// with peft in tests/lora_test.cc.
#include "checkpoint/lora.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/temporary_folder.h"
#include "checkpoint/find_model.h"
#include "checkpoint/gguf_header.h"
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
    weights_.layers.resize(2);
    for (LayerWeights& w : weights_.layers)
      w.router = dense_view(Format::kF32, kConfig.experts, kConfig.hidden,
                            reinterpret_cast<const std::byte*>(router_.data()));
  }

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
           const std::string& dtype = "F32", bool counting = false) {
    const size_t bytes = dtype == "F32" ? 4 : 8;
    size_t count = 1;
    for (const int64_t d : shape) count *= static_cast<size_t>(d);
    header_[name] = {
        {"dtype", dtype}, {"shape", shape}, {"data_offsets", {data_.size(), data_.size() + count * bytes}}};
    std::string one(bytes, '\0');
    std::memcpy(one.data(), &value, sizeof value);
    for (size_t i = 0; i < count; ++i) {
      if (counting) value = static_cast<float>(i), std::memcpy(one.data(), &value, sizeof value);
      data_ += one;
    }
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

  const TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path();
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
  add_pair("base_model.model.model.layers.0.mlp.router.linear", 3, 2, 64);  // unsloth's name
  ASSERT_EQ(error(), "");
  EXPECT_NE(weights_.layers[0].router.data, weights_.layers[1].router.data);
  weights_.layers[0].router = weights_.layers[1].router;
  header_ = {}, data_.clear();
  add_pair("base_model.model.model.layers.0.mlp.router", 3, 2, 64);
  ASSERT_EQ(error(), "");
  std::vector<float> row(64);
  read_row(weights_.layers[0].router, 2, row);
  EXPECT_EQ(row[5], 2.0F);  // 1 + 2 * (2 * 0.5 * 0.5)
  read_row(weights_.layers[1].router, 2, row);
  EXPECT_EQ(row[5], 1.0F);
}

// unsloth's: a module for each expert, of which some may have none.
TEST_F(LoraFolder, OneExpertAtATime) {
  config();
  add_pair("base_model.model.model.layers.0.mlp.experts.gate_up_projs.1", 64, 2, 64);
  add_pair("base_model.model.model.layers.0.mlp.experts.down_projs.2", 64, 2, 32);
  ASSERT_EQ(error(), "");
  const LayerAdapter& a = weights_.adapters[0];
  ASSERT_EQ(a.gate_up.up.count, 3);
  ASSERT_EQ(a.gate_up.up.first.rows, 64);
  ASSERT_EQ(a.down.down.first.cols, 32);
  std::vector<float> row(32);
  for (int64_t e = 0; e < 3; ++e) {
    read_row(a.gate_up.up.at(e), 5, row);
    EXPECT_EQ(row[1], e == 1 ? 1.0F : 0.0F) << e;
    read_row(a.down.up.at(e), 5, row);
    EXPECT_EQ(row[1], e == 2 ? 1.0F : 0.0F) << e;
  }
  header_ = {}, data_.clear();
  add_pair("base_model.model.model.layers.0.mlp.experts.down_projs.2", 64, 2, 32);
  add_pair("base_model.model.model.layers.0.mlp.experts.down_projs.02", 64, 2, 32);
  expect_error("is adapted twice");
}

// As vLLM and Tinker have them: gate has the even rows, up the odd ones.
TEST_F(LoraFolder, OneMatrixOfOneExpert) {
  config({{"alpha_pattern", {{"experts.1.up_proj", 8}}}});
  const std::string experts = "base_model.model.model.layers.0.mlp.experts.";
  add_pair(experts + "1.gate_proj", 32, 2, 64), add_pair(experts + "1.up_proj", 32, 2, 64);
  add_pair(experts + "2.down_proj", 64, 2, 32);
  ASSERT_EQ(error(), "");
  const LayerAdapter& a = weights_.adapters[0];
  std::vector<float> row(32);
  for (int64_t r : {4, 5}) {
    read_row(a.gate_up.up.at(1), r, row);
    EXPECT_EQ(row[0], r == 4 ? 1.0F : 0.0F) << r;
    EXPECT_EQ(row[2], r == 5 ? 2.0F : 0.0F) << r;
  }
  read_row(a.down.up.at(2), 5, row);
  EXPECT_EQ(row[1], 1.0F);
}

// peft 0.19 and later with transformers 4: B A is the change of [E, in, out], as transformers stores it.
TEST_F(LoraFolder, FactorsOfTheTranspose) {
  ModelConfig square = kConfig;
  square.intermediate = 64;
  const std::string experts = "base_model.model.model.layers.0.mlp.experts";
  const auto apply = [&](const char* version, bool gate_up) {
    config({{"peft_version", version}});
    header_ = {}, data_.clear(), weights_.adapters.clear();
    const std::string down = gate_up ? experts + ".base_layer" : experts;
    add(down + ".lora_A.weight", {6, 64}, 0, "F32", true),
        add(down + ".lora_B.weight", {64, 6}, 0, "F32", true);
    if (gate_up)
      add(experts + ".lora_A.weight", {6, 128}, 0, "F32", true),
          add(experts + ".lora_B.weight", {64, 6}, 0, "F32", true);
    write();
    return apply_lora(std::vector<std::string>{folder_.string()}, square, weights_).message();
  };
  // Number i of a factor is i; the scale is 2.
  const auto expect = [](const LowRankExperts& low, bool transposed) {
    std::vector<float> up(32), down(64);
    const int64_t rows = low.up.first.rows;
    for (int64_t e = 0; e < 3; ++e) {
      read_row(low.down.at(e), 1, down), read_row(low.up.at(e), 5, up);
      const int64_t a = e * 2 + 1, b = 3 + e;  // row of A, column of B
      EXPECT_EQ(down[7], static_cast<float>(transposed ? 7 * 6 + b : a * 64 + 7));
      EXPECT_EQ(up[1], static_cast<float>(2 * (transposed ? a * rows + 5 : 5 * 6 + b)));
    }
  };
  ASSERT_EQ(apply("0.21.2", true), "");
  expect(weights_.adapters[0].gate_up, true), expect(weights_.adapters[0].down, true);
  for (const char* version : {"0.19.0", "1.0", "0.20.0.dev0@0123456", "0.18.2.dev0@0123456"})
    EXPECT_NE(apply(version, false).find("fit the matrix and its transpose"), std::string::npos) << version;
  ASSERT_EQ(apply("0.18.1", false), "");
  expect(weights_.adapters[0].down, false);
}

TEST_F(LoraFolder, WholeModules) {
  config({{"modules_to_save", {"lm_head"}}});
  for (const char* ending : {".weight", ".modules_to_save.weight", ".modules_to_save.default.weight"}) {
    header_ = {}, data_.clear(), weights_.head = {};
    add(std::string("base_model.model.lm_head") + ending, {8, 64}, 0.25F);
    ASSERT_EQ(error(), "") << ending;
    std::vector<float> row(64);
    ASSERT_EQ(weights_.head.rows, 8);
    read_row(weights_.head, 7, row);
    EXPECT_EQ(row[63], 0.25F);
  }
  const std::vector<std::string> scaled = {folder_.string() + ":0.5"}, twice(2, folder_.string());
  EXPECT_NE(apply_lora(scaled, kConfig, weights_).message().find("no scale other than 1"), std::string::npos);
  EXPECT_NE(apply_lora(twice, kConfig, weights_).message().find("so does an earlier adapter"),
            std::string::npos);
  // peft saves them on its own where a vocabulary has changed.
  config();
  header_ = {}, data_.clear(), weights_.head = {};
  add("base_model.model.lm_head.weight", {8, 64}), add("base_model.model.model.embed_tokens.weight", {8, 64});
  ASSERT_EQ(error(), "");
  EXPECT_TRUE(weights_.head.rows == 8 && weights_.embed.rows == 8);
  header_ = {}, data_.clear();
  add("base_model.model.lm_head.weight", {9, 64});
  expect_error("saved module 'lm_head' is F32 [9, 64], expected [8, 64]");
}

// Adapters in the form that llama.cpp's converter writes.
class LoraGguf : public LoraFolder {
 protected:
  struct Tensor {
    std::string name;
    std::vector<int64_t> shape;
    float value = 0.5F;
    size_t count() const {
      size_t n = 1;
      for (const int64_t d : shape) n *= static_cast<size_t>(d);
      return n;
    }
  };
  void put_pair(const std::string& name, int64_t rows, int64_t rank, int64_t cols, int64_t experts = 0) {
    std::vector<int64_t> down = {rank, cols}, up = {rows, rank};
    if (experts > 0) down.insert(down.begin(), experts), up.insert(up.begin(), experts);
    tensors_.push_back({name + ".lora_a", down}), tensors_.push_back({name + ".lora_b", up});
  }
  Status apply(const std::string& scale = "") {
    GgufHeader header;
    for (const auto& [key, value] : texts_) header.text(key, value);
    if (alpha_ != 0) header.f32("adapter.lora.alpha", alpha_);
    std::string data;
    for (const Tensor& t : tensors_) {
      data.resize((data.size() + 31) / 32 * 32);
      header.tensor(t.name, t.shape, 0, data.size());
      for (size_t i = 0; i < t.count(); ++i)
        data.append(reinterpret_cast<const char*>(&t.value), sizeof t.value);
    }
    std::string head = header.finish(tensors_.size());
    head.resize((head.size() + 31) / 32 * 32);
    std::ofstream(folder_ / "adapter.gguf", std::ios::binary) << head << data;
    const std::vector<std::string> adapters = {(folder_ / "adapter.gguf").string() + scale};
    return apply_lora(adapters, kConfig, weights_);
  }
  void refuses(const std::string& what) {
    const Status status = apply();
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  }

  std::map<std::string, std::string> texts_ = {
      {"general.type", "adapter"}, {"adapter.type", "lora"}, {"general.architecture", "gpt-oss"}};
  double alpha_ = 4;
  std::vector<Tensor> tensors_;
};

TEST_F(LoraGguf, IsApplied) {
  put_pair("blk.1.attn_k.weight", 32, 2, 64);
  put_pair("blk.0.ffn_gate_inp.weight", 3, 2, 64);
  put_pair("blk.0.ffn_up_exps.weight", 32, 2, 64, 3);
  put_pair("blk.0.ffn_down_exps.weight", 64, 2, 32, 3);
  ASSERT_EQ(apply(":0.5").message(), "");
  std::vector<float> row(32), router(64);
  const LowRank& low = weights_.adapters[1].qkv;
  for (int64_t r = 0; r < low.up.rows; ++r) {
    read_row(low.up, r, row);
    EXPECT_EQ(row[1], r >= 64 && r < 96 ? 0.5F : 0.0F) << r;  // 0.5 times alpha / rank times 0.5
  }
  read_row(weights_.layers[0].router, 2, router);
  EXPECT_EQ(router[5], 1.5F);  // 1 + 2 * (0.5 * 0.5)
  const LowRankExperts& gate_up = weights_.adapters[0].gate_up;
  for (int64_t r = 0; r < 64; ++r) {
    read_row(gate_up.up.at(2), r, row);
    EXPECT_EQ(row[0], r % 2 == 1 ? 0.5F : 0.0F) << r;  // up has the odd rows
  }
  EXPECT_EQ(weights_.adapters[0].down.down.count, 3);
  alpha_ = 0;  // as llama.cpp takes it: no scale of its own
  ASSERT_EQ(apply().message(), "");
  read_row(weights_.adapters[3].qkv.up, 64, row);  // the second adapter's
  EXPECT_EQ(row[0], 0.5F);
  const std::vector<std::string> folder = {folder_.string()};
  EXPECT_TRUE(apply_lora(folder, kConfig, weights_).ok());  // its only GGUF file
}

TEST_F(LoraGguf, WrongOnesAreOneLine) {
  refuses("it holds no tensors");
  put_pair("blk.0.attn_q.weight", 64, 2, 63);
  refuses("are not of this model's size");
  for (const char* name :
       {"blk.2.attn_q.weight", "token_embd.weight", "blk.0.attn_q.bias", "blk.x", "blk.0.ffn_up_exps"}) {
    tensors_.clear(), put_pair(name, 64, 2, 64);
    refuses("is not a matrix that can be adapted");
  }
  tensors_ = {{"blk.0.attn_norm.weight", {64}}};
  refuses("is not a LoRA factor");
  tensors_ = {{"blk.0.attn_q.weight.lora_a", {2, 64}}};
  refuses("has no lora_b");
  tensors_.clear(), put_pair("blk.0.ffn_up_exps.weight", 32, 2, 64, 2);
  refuses("are not of this model's size");
  tensors_.clear(), put_pair("blk.0.attn_q.weight", 64, 2, 64), tensors_[1].value = NAN;
  refuses("hold a NaN");
  tensors_[1].value = 1e30F, alpha_ = 1e30;
  refuses("beyond F32");
  for (const auto& [key, says] : {std::pair("general.type", "not an adapter: general.type is 'x'"),
                                  std::pair("adapter.type", "adapter.type is 'x'"),
                                  std::pair("general.architecture", "an adapter of architecture 'x'")}) {
    const std::string before = std::exchange(texts_[key], "x");
    refuses(says);
    texts_[key] = before;
  }
  texts_["adapter.alora.invocation_tokens"] = "1 2";
  refuses("only certain tokens switch on");
}

TEST_F(LoraFolder, TensorsThatAreNotApplied) {
  config();
  const struct {
    std::string name;
    std::vector<int64_t> shape;
    const char* says;
  } kCases[] = {
      {"base_model.model.model.embed_tokens.lora_embedding_A", {2, 8}, "is not a LoRA factor"},
      {"base_model.model.model.norm.weight", {64}, "is not a LoRA factor"},
      {"base_model.model.model.embed_tokens.modules_to_save.weight", {8, 64}, "is not a LoRA factor"},
      {kQuery + ".lora_magnitude_vector.weight", {64}, "is of DoRA, which is not supported"},
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
                             "base_model.model.model.layers.1.mlp.experts.gate_up_projs.3",
                             "base_model.model.model.layers.1.mlp.experts.gate_up_projs",
                             "base_model.model.model.layers.1.mlp.experts.gate_up_projs.0x",
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
  expect_error("are I64, expected F32, F16, BF16 or Q8_0");
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
      {{{"modules_to_save", {"lm_head"}}}, "it has no tensor of the saved module 'lm_head'"},
      {{{"modules_to_save", {"lm_head", "norm"}}}, "'modules_to_save' has \"norm\", which is not supported"},
      {{{"modules_to_save", 7}}, "'modules_to_save' has 7"},
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

// The 20b's attention has the shapes of the 120b's.
TEST_F(LoraFolder, AdaptersOfTheOtherModel) {
  add_pair(kQuery, 64, 2, 64), write();
  const std::vector<std::string> adapters = {folder_.string()};
  const auto applied = [&](const char* base, int layers) {
    config({{"base_model_name_or_path", base}});
    ModelConfig model = kConfig;
    model.layers = layers, model.sliding.resize(static_cast<size_t>(layers));
    weights_.layers.resize(static_cast<size_t>(layers), weights_.layers[0]);
    return apply_lora(adapters, model, weights_).message();
  };
  EXPECT_NE(applied("unsloth/gpt-oss-20b-unsloth-bnb-4bit", 36)
                .find("an adapter of gpt-oss-20b; the model has the 36 layers of gpt-oss-120b"),
            std::string::npos);
  EXPECT_NE(applied("/models/GPT_OSS 120b", 24).find("an adapter of gpt-oss-120b"), std::string::npos);
  EXPECT_NE(applied("openai/gpt-oss-safeguard-20b", 36).find("an adapter of gpt-oss-20b"), std::string::npos);
  EXPECT_NE(applied("gpt-oss:20b", 36).find("an adapter of gpt-oss-20b"), std::string::npos);
  EXPECT_EQ(applied("openai/gpt-oss-safeguard-120b", 36), "");
  EXPECT_EQ(applied("openai/gpt-oss-120b", 36), "");
  EXPECT_EQ(applied("openai/gpt-oss-20b", 24), "");
  EXPECT_EQ(applied("openai/gpt-oss-20b", 2), "");
  EXPECT_EQ(applied("gpt-oss-20b-from-gpt-oss-120b", 24), "");
  EXPECT_EQ(applied("me/my-model", 36), "");
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
  const std::vector<std::string> asked = {folder_.string() + "/../" + folder_.filename().string() + ":0.5"};
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
