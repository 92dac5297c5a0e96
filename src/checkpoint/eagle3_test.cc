// Draft heads as files: every form is read, every wrong thing is one line that names it.
#include "checkpoint/eagle3.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/temporary_folder.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf_header.h"
#include "checkpoint/json.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

const ModelConfig kTarget{.layers = 8, .hidden = 32, .vocab = 64, .max_context = 64};

struct Tensor {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

// F32 values 0.5, as many as the shape has.
Tensor halves(std::vector<int64_t> shape, float value = 0.5f) {
  int64_t count = 1;
  for (const int64_t d : shape) count *= d;
  Tensor t{"F32", std::move(shape), std::string(static_cast<size_t>(count) * sizeof value, '\0')};
  for (int64_t i = 0; i < count; ++i) std::memcpy(t.bytes.data() + i * 4, &value, sizeof value);
  return t;
}

template <typename T>
Tensor list_of(const std::string& dtype, const std::vector<T>& values) {
  Tensor t{dtype, {std::ssize(values)}, std::string(values.size() * sizeof(T), '\0')};
  std::memcpy(t.bytes.data(), values.data(), t.bytes.size());
  return t;
}

// A head that is right: hidden 32, 2 heads of 16, one KV head, MLP 32, 16 draft tokens of 64.
struct Files {
  Json config = {{"architectures", {"LlamaForCausalLMEagle3"}},
                 {"hidden_size", 32},
                 {"intermediate_size", 32},
                 {"num_hidden_layers", 1},
                 {"num_attention_heads", 2},
                 {"num_key_value_heads", 1},
                 {"head_dim", 16},
                 {"vocab_size", 64},
                 {"draft_vocab_size", 16},
                 {"rms_norm_eps", 1e-5},
                 {"rope_theta", 20000.0},
                 {"rope_scaling", nullptr}};
  std::map<std::string, Tensor> tensors = {
      {"fc.weight", halves({32, 96})},
      {"midlayer.input_layernorm.weight", halves({32})},
      {"midlayer.hidden_norm.weight", halves({32})},
      {"midlayer.post_attention_layernorm.weight", halves({32})},
      {"midlayer.self_attn.q_proj.weight", halves({32, 64})},
      {"midlayer.self_attn.k_proj.weight", halves({16, 64})},
      {"midlayer.self_attn.v_proj.weight", halves({16, 64})},
      {"midlayer.self_attn.o_proj.weight", halves({32, 32})},
      {"midlayer.mlp.gate_proj.weight", halves({32, 32})},
      {"midlayer.mlp.up_proj.weight", halves({32, 32})},
      {"midlayer.mlp.down_proj.weight", halves({32, 32})},
      {"norm.weight", halves({32})},
      {"lm_head.weight", halves({16, 32})},
      {"d2t", list_of("I64", std::vector<int64_t>(16, 3))},
      {"t2d", {"BOOL", {64}, std::string(64, '\1')}},
  };

  std::string safetensors() const {
    Json header = Json::object();
    std::string data;
    for (const auto& [name, t] : tensors) {
      header[name] = {{"dtype", t.dtype},
                      {"shape", t.shape},
                      {"data_offsets", {data.size(), data.size() + t.bytes.size()}}};
      data += t.bytes;
    }
    const std::string text = header.dump();
    const uint64_t length = text.size();
    return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text + data;
  }
};

class Eagle3File : public FolderTest {
 protected:
  Result<Eagle3Head> open(const Files& files, size_t cut = 0) {
    std::ofstream(folder_ / "config.json") << files.config.dump();
    const std::string bytes = files.safetensors();
    std::ofstream(folder_ / "model.safetensors", std::ios::binary) << bytes.substr(0, bytes.size() - cut);
    return open_eagle3(folder_.string(), kTarget);
  }
  void refuses(const Files& files, const std::string& what, size_t cut = 0) {
    Result<Eagle3Head> head = open(files, cut);
    Status status = head.status();
    if (head.ok()) status = validate(head->weights, head->config);
    EXPECT_FALSE(status.ok()) << what;
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  }

  Files files_;
};

// The same head as llama.cpp's converter writes it.
class Eagle3GgufFile : public Eagle3File {
 protected:
  static constexpr const char* kNames[][2] = {{"midlayer.input_layernorm", "blk.0.attn_norm"},
                                              {"midlayer.hidden_norm", "blk.0.attn_norm_2"},
                                              {"midlayer.post_attention_layernorm", "blk.0.ffn_norm"},
                                              {"midlayer.self_attn.q_proj", "blk.0.attn_q"},
                                              {"midlayer.self_attn.k_proj", "blk.0.attn_k"},
                                              {"midlayer.self_attn.v_proj", "blk.0.attn_v"},
                                              {"midlayer.self_attn.o_proj", "blk.0.attn_output"},
                                              {"midlayer.mlp.gate_proj", "blk.0.ffn_gate"},
                                              {"midlayer.mlp.up_proj", "blk.0.ffn_up"},
                                              {"midlayer.mlp.down_proj", "blk.0.ffn_down"},
                                              {"norm", "output_norm"},
                                              {"lm_head", "output"},
                                              {"fc", "fc"},
                                              {"input_norm", "enc.output_norm"}};

  // Each row of q and k has its own value, so that their order can be seen.
  Eagle3GgufFile() {
    for (const char* name : {"midlayer.self_attn.q_proj.weight", "midlayer.self_attn.k_proj.weight"}) {
      Tensor& t = files_.tensors.at(name);
      const auto floats = static_cast<size_t>(t.shape[1]);
      for (size_t i = 0; i < t.bytes.size() / 4; ++i) {
        const size_t row = i / floats;
        const auto value = static_cast<float>(row);
        std::memcpy(t.bytes.data() + 4 * i, &value, 4);
      }
    }
  }
  static std::string permuted(const Tensor& t) {
    constexpr size_t kDim = 16;
    const size_t row = t.bytes.size() / static_cast<size_t>(t.shape[0]);
    std::string out = t.bytes;
    for (size_t r = 0; r < static_cast<size_t>(t.shape[0]); ++r) {
      const size_t i = r % kDim, to = r - i + (i < kDim / 2 ? 2 * i : 2 * (i - kDim / 2) + 1);
      out.replace(to * row, row, t.bytes, r * row, row);
    }
    return out;
  }
  void metadata(GgufHeader& h) const {
    h.text("general.architecture", architecture_);
    h.u32("eagle3.block_count", 1), h.u32("eagle3.embedding_length", 32),
        h.u32("eagle3.feed_forward_length", 32);
    h.u32("eagle3.attention.head_count", 2), h.u32("eagle3.attention.head_count_kv", 1);
    h.u32("eagle3.attention.key_length", 16), h.u32("eagle3.vocab_size", 64);
    h.u32("eagle3.expert_count", 32), h.u32("eagle3.expert_used_count", 4);
    h.u32("eagle3.target_hidden_size", 32), h.integers(taps_key_, {2, 4, 6});
    if (!key_.empty()) h.boolean(key_, true);
    h.f32("eagle3.attention.layer_norm_rms_epsilon", 1e-5), h.f32("eagle3.rope.freq_base", 20000.0);
    h.boolean("eagle3.norm_before_residual", true), h.boolean("eagle3.norm_before_fc", before_fc_);
  }
  void write(const std::string& name) const {
    GgufHeader header;
    metadata(header);
    std::string data;
    uint64_t tensors = 0;
    const auto add = [&](const std::string& tensor, const std::vector<int64_t>& shape, uint32_t type,
                         const std::string& bytes) {
      data.resize((data.size() + 31) / 32 * 32);
      header.tensor(tensor, shape, type, data.size());
      data += bytes, ++tensors;
    };
    for (const auto& [hf, gguf] : kNames) {
      const auto it = files_.tensors.find(std::string(hf) + ".weight");
      if (it == files_.tensors.end()) continue;
      const std::string tensor = gguf;
      const bool turned = tensor == "blk.0.attn_q" || tensor == "blk.0.attn_k";
      add(tensor + ".weight", it->second.shape, 0, turned ? permuted(it->second) : it->second.bytes);
    }
    const std::string ids = list_of("I64", ids_).bytes;
    add("d2t", {16}, 27, ids);
    if (!extra_.empty()) add(extra_, {16}, 0, std::string(64, '\0'));
    std::string head = header.finish(tensors);
    head.resize((head.size() + 31) / 32 * 32);
    std::ofstream(folder_ / name, std::ios::binary) << head << data;
  }
  void refuses_gguf(const std::string& what) const {
    write("bad.gguf");
    const Status status = open_eagle3((folder_ / "bad.gguf").string(), kTarget).status();
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  }

  std::string architecture_ = "eagle3", extra_, key_, taps_key_ = "eagle3.target_layers";
  bool before_fc_ = false;
  std::vector<int64_t> ids_ = {3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18};
};

TEST_F(Eagle3GgufFile, IsTheHeadOfTheFolder) {
  for (const bool before_fc : {false, true}) {
    before_fc_ = before_fc;
    files_.config["norm_before_residual"] = true, files_.config["norm_before_fc"] = before_fc;
    files_.config["eagle_aux_hidden_state_layer_ids"] = {2, 4, 6};
    taps_key_ = before_fc ? "eagle3.extract_layers" : "eagle3.target_layers";
    if (before_fc) files_.tensors["input_norm.weight"] = halves({96});
    const auto folder = open(files_);
    ASSERT_TRUE(folder.ok()) << folder.status().message();
    write("head.gguf");
    const auto gguf = open_eagle3((folder_ / "head.gguf").string(), kTarget);
    ASSERT_TRUE(gguf.ok()) << gguf.status().message();
    EXPECT_EQ(gguf->config.taps, folder->config.taps);
    EXPECT_EQ(gguf->config.rope, folder->config.rope);
    EXPECT_EQ(gguf->config.rms_eps, static_cast<double>(1e-5F));
    EXPECT_TRUE(gguf->config.norm_before_residual);
    EXPECT_EQ(gguf->weights.target_ids, folder->weights.target_ids);
    EXPECT_TRUE(validate(gguf->weights, gguf->config).ok());
    const Eagle3Weights &a = gguf->weights, &b = folder->weights;
    for (const auto& [x, y] :
         {std::pair(&a.q, &b.q), std::pair(&a.k, &b.k), std::pair(&a.v, &b.v), std::pair(&a.fc, &b.fc),
          std::pair(&a.down, &b.down), std::pair(&a.head, &b.head), std::pair(&a.hidden_norm, &b.hidden_norm),
          std::pair(&a.input_norm, &b.input_norm)}) {
      ASSERT_EQ(x->data == nullptr, y->data == nullptr);
      if (x->data == nullptr) continue;
      ASSERT_EQ(x->rows, y->rows);
      std::vector<float> p(static_cast<size_t>(x->cols)), q(p.size());
      for (int64_t r = 0; r < x->rows; ++r) {
        read_row(*x, r, p), read_row(*y, r, q);
        ASSERT_EQ(p, q) << r;
      }
    }
  }
}

TEST_F(Eagle3GgufFile, IsFoundBesideTheModel) {
  const fs::path both = folder_ / "both";
  fs::create_directories(both);
  write("both/head.gguf");
  EXPECT_TRUE(open_eagle3(both.string(), kTarget).ok());
  architecture_ = "gpt-oss";
  write("both/a-model.gguf");
  const auto head = open_eagle3(both.string(), kTarget);
  EXPECT_TRUE(head.ok()) << head.status().message();
  architecture_ = "eagle3";
  write("both/second.gguf");
  EXPECT_NE(open_eagle3(both.string(), kTarget).status().message().find("several draft heads"),
            std::string::npos);
}

TEST_F(Eagle3GgufFile, WrongOnesAreOneLine) {
  architecture_ = "llama";
  refuses_gguf("architecture is 'llama', expected eagle3");
  architecture_ = "eagle3", extra_ = "blk.0.rope_freqs.weight";
  refuses_gguf("scales RoPE as Llama 3 does");
  extra_ = "blk.0.attn_q.bias";
  refuses_gguf("is not known in an EAGLE3 head");
  extra_.clear(), key_ = "eagle3.norm_output";
  refuses_gguf("metadata 'eagle3.norm_output' says what is not supported");
  key_.clear(), ids_[15] = 64;
  refuses_gguf("outside the vocabulary");
  ids_[15] = INT64_MIN;
  refuses_gguf("outside the vocabulary");
  ids_[15] = 18, before_fc_ = true;
  refuses_gguf("'norm_before_fc' is set");
  before_fc_ = false, files_.tensors.erase("midlayer.self_attn.k_proj.weight");
  refuses_gguf("'k_proj' is missing");
}

TEST_F(Eagle3File, FlatFormIsRead) {
  const auto head = open(files_);
  ASSERT_TRUE(head.ok()) << head.status().message();
  EXPECT_EQ(head->config.taps, (std::vector<int>{2, 4, 5}));  // 2, n / 2, n - 3
  EXPECT_EQ(head->config.rope.theta, 20000.0);
  EXPECT_EQ(head->config.rope.factor, 1.0);
  EXPECT_FALSE(head->config.norm_before_residual);
  std::vector<int32_t> ids(16);
  for (int d = 0; d < 16; ++d) ids[static_cast<size_t>(d)] = d + 3;
  EXPECT_EQ(head->weights.target_ids, ids);
  EXPECT_EQ(head->weights.fc.cols, 96);
  EXPECT_EQ(head->weights.input_norm.data, nullptr);
  EXPECT_TRUE(validate(head->weights, head->config).ok());
}

TEST_F(Eagle3File, RopeOfLlama3IsRead) {
  files_.config["rope_scaling"] = {{"rope_type", "llama3"},
                                   {"factor", 8.0},
                                   {"low_freq_factor", 1.0},
                                   {"high_freq_factor", 4.0},
                                   {"original_max_position_embeddings", 8192}};
  const auto head = open(files_);
  ASSERT_TRUE(head.ok()) << head.status().message();
  EXPECT_EQ(head->config.rope, (RopeConfig{.theta = 20000.0,
                                           .factor = 8.0,
                                           .beta_fast = 4.0,
                                           .beta_slow = 1.0,
                                           .original_context = 8192,
                                           .attention_factor = 1,
                                           .llama3 = true}));
}

TEST_F(Eagle3File, SpeculatorsFormIsRead) {
  Json layer = files_.config;
  layer.erase("architectures"), layer.erase("draft_vocab_size");
  files_.config = {{"architectures", {"Eagle3DraftModel"}},
                   {"speculators_model_type", "eagle3"},
                   {"transformer_layer_config", layer},
                   {"draft_vocab_size", nullptr},
                   {"target_hidden_size", nullptr},
                   {"norm_topk_prob", true},
                   {"norm_eps", 1e-5},
                   {"norm_type", "rms"},
                   {"norm_before_residual", true},
                   {"norm_output", true},
                   {"fc_norm", true},
                   {"eagle_aux_hidden_state_layer_ids", {1, 8}}};
  std::map<std::string, Tensor> named;
  for (const auto& [name, tensor] : files_.tensors)
    named["model." + (name.starts_with("midlayer.") ? "layers.0." + name.substr(9) : name)] = tensor;
  files_.tensors = named;
  files_.tensors.erase("model.d2t"), files_.tensors.erase("model.lm_head.weight");
  files_.tensors["model.fc.weight"] = halves({32, 64});
  files_.tensors["model.fc_norm.0.weight"] = files_.tensors["model.fc_norm.1.weight"] = halves({32});
  files_.tensors["embed_tokens.weight"] = halves({64, 32});
  const auto head = open(files_);
  ASSERT_TRUE(head.ok()) << head.status().message();
  EXPECT_EQ(head->config.taps, (std::vector<int>{1, 8}));
  EXPECT_TRUE(head->config.norm_before_residual && head->config.norm_output);
  EXPECT_EQ(head->config.draft_vocab, 64);
  EXPECT_EQ(head->weights.target_ids[63], 63);
  EXPECT_EQ(head->weights.fc_norms.size(), 2u);
  EXPECT_EQ(head->weights.head.data, nullptr);
  EXPECT_NE(head->weights.embed.data, nullptr);
}

TEST_F(Eagle3File, TapsByEitherConvention) {
  auto head = open(files_);
  ASSERT_TRUE(head.ok());
  Eagle3Config c = head->config;
  EXPECT_EQ(tap_boundaries(c, kTarget).value(), (std::vector<int>{2, 4, 5}));
  c.convention = TapConvention::kBlockOutput;
  EXPECT_EQ(tap_boundaries(c, kTarget).value(), (std::vector<int>{3, 5, 6}));
  c.taps = {8};
  EXPECT_FALSE(tap_boundaries(c, kTarget).ok());
  c.convention = TapConvention::kBoundary;
  EXPECT_TRUE(tap_boundaries(c, kTarget).ok());
}

TEST_F(Eagle3File, OtherKindsAreRefusedByName) {
  Files f = files_;
  f.config["dflash_config"] = Json::object();
  refuses(f, "DFlash");
  f = files_, f.config["architectures"] = {"DFlashDraftModel"};
  refuses(f, "DFlash");
  f = files_, f.config["parallel_drafting"] = true;
  refuses(f, "P-EAGLE");
  f = files_, f.config["speculators_model_type"] = "hass";
  refuses(f, "'hass'");
  f = files_, f.config["architectures"] = {"LlamaForCausalLM"};
  refuses(f, "architecture is 'LlamaForCausalLM'");
  f = files_, f.config["num_hidden_layers"] = 2;
  refuses(f, "2 layers");
  f = files_, f.tensors["mask_hidden"] = halves({32});
  refuses(f, "'mask_hidden': a P-EAGLE head");
  f = files_, f.tensors["layers.1.mlp.up_proj.weight"] = halves({32, 32});
  refuses(f, "'layers.1.mlp.up_proj.weight': a P-EAGLE head, or one of several layers");
}

TEST_F(Eagle3File, EveryWrongConfigIsNamed) {
  const std::tuple<const char*, Json, const char*> cases[] = {
      {"hidden_size", 64, "hidden_size is 64, the model's is 32"},
      {"vocab_size", 65, "vocab_size is 65"},
      {"intermediate_size", 33, "intermediate_size 33"},
      {"num_attention_heads", "two", "num_attention_heads"},
      {"num_key_value_heads", 0, "KV heads"},
      {"head_dim", 15, "head_dim 15"},
      {"draft_vocab_size", 65, "draft_vocab_size is 65"},
      {"rope_scaling", {{"rope_type", "longrope"}}, "'longrope' is not supported; 'yarn', 'llama3' and"},
      {"rope_scaling",
       {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}},
       "'high_freq_factor' is missing"},
      {"target_hidden_size", 33, "reads hidden states of 33, the model's have 32"},
      {"norm_before_tomorrow", true, "'norm_before_tomorrow' is true"},
      {"eagle_config", {{"norm_of_tomorrow", true}}, "'norm_of_tomorrow' is true"},
      {"eagle_config", {{"use_last_layernorm", false}}, "'use_last_layernorm' is false"},
      {"rope_theta", 0, "rope_theta"},
      {"hidden_act", "gelu", "gelu"},
      {"attention_bias", true, "'attention_bias'"},
      {"eagle_config", {{"use_aux_hidden_state", false}}, "use_aux_hidden_state"},
      {"eagle_config", {{"eagle_aux_hidden_state_layer_ids", {2, 4, 9}}}, "layer 9"},
      {"eagle_config", {{"eagle_aux_hidden_state_layer_ids", {2, "x", 9}}}, "no layer"},
      {"eagle_config", {{"norm_before_fc", true}}, "'input_norm' is missing"},
      {"eagle_config", {{"fc_norm", true}}, "'fc_norm.0' is missing"},
      {"num_hidden_layers", "1", "'num_hidden_layers' is not"},
      {"target_hidden_size", "32", "'target_hidden_size' is not"},
  };
  for (const auto& [key, value, what] : cases) {
    Files f = files_;
    f.config[key] = value;
    refuses(f, what);
  }
}

TEST_F(Eagle3File, EveryWrongTensorIsNamed) {
  for (const auto& [name, tensor] : files_.tensors) {
    if (name == "t2d") continue;
    Files f = files_;
    f.tensors.erase(name);
    const std::string plain = name == "d2t" ? name : name.substr(0, name.rfind(".weight"));
    refuses(f, plain.substr(plain.rfind('.') + 1) + "' is missing");
  }
  Files f = files_;
  f.tensors["fc.weight"] = halves({32, 64});
  refuses(f, "'fc' is [32, 64], the config asks for [32, 96]");
  f = files_, f.tensors["fc.weight"].dtype = "I32";
  refuses(f, "I32");
  f = files_, f.tensors["midlayer.self_attn.q_proj.bias"] = halves({32});
  refuses(f, "q_proj.bias");
  f = files_, f.tensors["model.norm.weight"] = halves({32});
  refuses(f, "stands there twice");
  f = files_, f.tensors["norm.weight"] = halves({32}, NAN);
  refuses(f, "'norm' row 0: NaN");
  f = files_, f.tensors["lm_head.weight"] = halves({16, 32}, INFINITY);
  refuses(f, "'lm_head' row 0: NaN or infinity");
  f = files_, f.config["eagle_config"] = {{"norm_before_fc", false}},
  f.tensors["input_norm.weight"] = halves({96});
  refuses(f, "'norm_before_fc' is false");
  refuses(files_, "truncated", 10);
}

TEST_F(Eagle3File, DraftTokensOutsideTheVocabularyAreRefused) {
  for (const int64_t last : {int64_t{49}, int64_t{-16}, INT64_MAX, INT64_MIN}) {
    Files f = files_;
    std::vector<int64_t> offsets(16, 0);
    offsets[15] = last;
    f.tensors["d2t"] = list_of("I64", offsets);
    refuses(f, "draft token 15 outside the vocabulary");
  }
  Files f = files_;
  f.tensors["d2t"] = list_of("I32", std::vector<int32_t>(16, 48));
  EXPECT_TRUE(open(f).ok());
  f.tensors["d2t"] = list_of("I64", std::vector<int64_t>(15, 0));
  refuses(f, "'d2t' is not a list of 16");
  f.tensors["d2t"] = list_of("F32", std::vector<float>(16, 0));
  refuses(f, "'d2t' is F32");
}

TEST_F(Eagle3File, AsAModelItIsNamed) {
  ASSERT_TRUE(open(files_).ok());
  EXPECT_NE(open_checkpoint(folder_.string()).status().message().find("an EAGLE3 draft head"),
            std::string::npos);
}

TEST_F(Eagle3GgufFile, AsAModelItIsNamed) {
  write("head.gguf");
  for (const fs::path& name : {folder_, folder_ / "head.gguf"})
    EXPECT_NE(open_checkpoint(name.string()).status().message().find("an EAGLE3 draft head"),
              std::string::npos);
}

TEST_F(Eagle3File, FoldersThatHoldNoHead) {
  EXPECT_FALSE(open_eagle3("/nonexistent/folder", kTarget).ok());
  EXPECT_FALSE(open_eagle3(folder_.string(), kTarget).ok());
  std::ofstream(folder_ / "config.json") << files_.config.dump();
  EXPECT_NE(open_eagle3(folder_.string(), kTarget).status().message().find(".safetensors"),
            std::string::npos);
  std::ofstream(folder_ / "config.json") << "[]";
  EXPECT_FALSE(open_eagle3(folder_.string(), kTarget).ok());
}

}  // namespace
}  // namespace moesaic
