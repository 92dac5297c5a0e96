// Folders as programs leave them: an index of files that are gone, a head that is the embedding.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "base/temporary_folder.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/json.h"
#include "checkpoint/writer.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

class ModelFolder : public FolderTest {
 protected:
  ModelFolder() { fs::copy(std::string(MOESAIC_SOURCE_DIR) + "/tests/golden/model/tiny-mxfp4", folder_); }
  void set(const char* key, const Json& value) const {
    Json config = Json::parse(get("config.json"));
    config[key] = value;
    put("config.json", config.dump());
  }
  // The header of model.safetensors, changed; the tensors' bytes stay.
  template <typename Change>
  void change_header(Change&& change) const {
    const std::string file = get("model.safetensors");
    uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof length);
    Json header = Json::parse(file.substr(sizeof length, length));
    change(header);
    const std::string text = header.dump(), data = file.substr(sizeof length + length);
    length = text.size();
    put("model.safetensors",
        std::string(reinterpret_cast<const char*>(&length), sizeof length) + text + data);
  }
  void forget(const std::string& tensor) const {
    change_header([&](Json& header) { header.erase(tensor); });
  }
  // Tensors whose names end so.
  void retype(const std::string& ending, const std::string& dtype) const {
    change_header([&](Json& header) {
      for (auto& [name, tensor] : header.items()) {
        if (name.ends_with(ending)) tensor["dtype"] = dtype;
      }
    });
  }
};

TEST_F(ModelFolder, AStaleIndexDoesNotHideACompleteFile) {
  put("model.safetensors.index.json", R"({"weight_map": {"a": "model-00001-of-00002.safetensors"}})");
  const auto checkpoint = open_checkpoint(folder_.string());
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  fs::remove(path("model.safetensors"));
  const Status missing = open_checkpoint(folder_.string()).status();
  EXPECT_NE(missing.message().find("'model-00001-of-00002.safetensors' is missing"), std::string::npos)
      << missing.message();
}

TEST_F(ModelFolder, AnIndexWhoseFilesAreThereCounts) {
  fs::copy(path("model.safetensors"), path("other.safetensors"));
  put("model.safetensors", "left over");
  put("model.safetensors.index.json", R"({"weight_map": {"a": "other.safetensors"}})");
  const auto checkpoint = open_checkpoint(folder_.string());
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
}

// transformers reads all files that the index names, whole: the copy of a tensor in the last one counts.
TEST_F(ModelFolder, ACopyIsTheSameOrRefused) {
  const std::string whole = get("model.safetensors");
  const auto error = [&] { return open_checkpoint(folder_.string()).status().message(); };
  // Whatever file the index has a tensor in.
  put("model.safetensors.index.json",
      R"({"weight_map": {"lm_head.weight": "a.safetensors", "model.norm.weight": "b.safetensors"}})");
  put("a.safetensors", whole), put("b.safetensors", whole);
  fs::remove(path("model.safetensors"));
  EXPECT_EQ(error(), "");
  std::string other = whole;
  other.back() = static_cast<char>(other.back() ^ 1);
  put("b.safetensors", other);
  EXPECT_NE(error().find("stands in two files, and not the same"), std::string::npos) << error();
  put("model.safetensors", whole);
  forget("lm_head.weight");
  fs::rename(path("model.safetensors"), path("a.safetensors"));
  put("b.safetensors", whole);
  EXPECT_EQ(error(), "");
  put("model.safetensors.index.json", R"({"weight_map": {}})");
  const Status empty = open_checkpoint(folder_.string()).status();
  EXPECT_NE(empty.message().find("index.json: its weight_map is empty"), std::string::npos)
      << empty.message();
}

// unsloth's name of the router is read; a bias of the head would change the numbers; experts in a tensor each
// are told before anything else is missed.
TEST_F(ModelFolder, NamesOfOtherPrograms) {
  const auto rename = [](Json& header, const std::string& from, const std::string& to) {
    header[to] = header[from];
    header.erase(from);
  };
  const std::string router = "model.layers.0.mlp.router.";
  change_header([&](Json& header) {
    for (const char* name : {"weight", "bias"}) rename(header, router + name, router + "linear." + name);
  });
  const auto checkpoint = open_checkpoint(folder_.string());
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  const std::string before = get("model.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, before.data(), sizeof length);
  const size_t end = before.size() - sizeof length - length;
  for (const char* name : {"lm_head.bias", "model.norm.bias", "model.embed_tokens.weight_scale"}) {
    put("model.safetensors", before + "1234");
    change_header([&](Json& header) {
      header[name] = {{"dtype", "F32"}, {"shape", {1}}, {"data_offsets", {end, end + 4}}};
    });
    const Status status = open_checkpoint(folder_.string()).status();
    EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
  }
  put("model.safetensors", before);
  forget(router + "linear.weight");
  const std::string experts = "model.layers.0.mlp.experts.";
  std::string last = experts + "down_proj_bias";
  for (const char* name : {"gate_up_projs.0.weight", "0.gate_up_proj.weight", "0.gate_proj.weight"}) {
    change_header([&](Json& header) { rename(header, last, experts + name); });
    last = experts + name;
    const Status each = open_checkpoint(folder_.string()).status();
    EXPECT_NE(each.message().find(last + "': experts in a tensor each are not supported"), std::string::npos)
        << each.message();
  }
}

TEST_F(ModelFolder, WithoutAnIndexAllItsFilesAreRead) {
  fs::rename(path("model.safetensors"), path("first.safetensors"));
  put("notes.txt", "no tensors");
  const auto checkpoint = open_checkpoint(folder_.string());
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
}

TEST_F(ModelFolder, AnEmptyFileIsCalledEmpty) {
  put("model.safetensors", "");
  const Status status = open_checkpoint(folder_.string()).status();
  EXPECT_NE(status.message().find("model.safetensors: the file is empty"), std::string::npos)
      << status.message();
}

TEST_F(ModelFolder, ATiedHeadIsTheEmbedding) {
  forget("lm_head.weight");
  const Status missing = open_checkpoint(folder_.string()).status();
  EXPECT_NE(missing.message().find("'lm_head.weight' is missing"), std::string::npos) << missing.message();
  set("tie_word_embeddings", true);
  const auto tied = open_checkpoint(folder_.string());
  ASSERT_TRUE(tied.ok()) << tied.status().message();
  EXPECT_EQ(tied->weights.head.data, tied->weights.embed.data);
  // The output of convert has a head of its own, and says so.
  ASSERT_TRUE(write_safetensors(tied.value(), path("out"), {}).ok());
  const auto out = open_checkpoint(path("out"));
  ASSERT_TRUE(out.ok()) << out.status().message();
  EXPECT_FALSE(out->config.tied_head);
  std::vector<float> a(out->config.hidden), b(out->config.hidden);
  read_row(out->weights.head, 5, a), read_row(out->weights.embed, 5, b);
  EXPECT_EQ(a, b);
}

// Both there: the head's own weights count, as in transformers 5 where they differ.
TEST_F(ModelFolder, AHeadThatIsThereIsTaken) {
  set("tie_word_embeddings", true);
  const auto checkpoint = open_checkpoint(folder_.string());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_NE(checkpoint->weights.head.data, checkpoint->weights.embed.data);
}

TEST_F(ModelFolder, ScalesMayHaveTheirOwnType) {
  retype("_scales", "F8_E8M0");
  const auto checkpoint = open_checkpoint(folder_.string());
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  retype("_scales", "F8_E4M3");
  EXPECT_NE(open_checkpoint(folder_.string())
                .status()
                .message()
                .find("_scales' has type F8_E4M3, expected U8 or F8_E8M0"),
            std::string::npos);
  retype("_blocks", "F8_E8M0");
  EXPECT_NE(
      open_checkpoint(folder_.string()).status().message().find("_blocks' has type F8_E8M0, expected U8"),
      std::string::npos);
}

// Each value of a config that differs from gpt-oss's own is still there in what convert writes, or refused.
TEST_F(ModelFolder, ConvertKeepsTheConfigOrRefuses) {
  const std::pair<const char*, Json> changes[] = {{"rope_scaling", {{"rope_type", "default"}}},
                                                  {"rope_scaling",
                                                   {{"rope_type", "yarn"},
                                                    {"factor", 8},
                                                    {"attention_factor", 1.0},
                                                    {"original_max_position_embeddings", 64}}},
                                                  {"swiglu_alpha", 1.5},
                                                  {"swiglu_limit", 5.0},
                                                  {"layer_types", {"full_attention", "sliding_attention"}}};
  const std::string before = get("config.json");
  for (size_t i = 0; i < std::size(changes); ++i) {
    SCOPED_TRACE(changes[i].first);
    put("config.json", before);
    set(changes[i].first, changes[i].second);
    const auto source = open_checkpoint(folder_.string());
    ASSERT_TRUE(source.ok()) << source.status().message();
    const std::string out = path("out" + std::to_string(i));
    ASSERT_TRUE(write_safetensors(source.value(), out, {}).ok());
    const auto again = open_checkpoint(out);
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(again->config.rope, source->config.rope);
    EXPECT_EQ(again->config.swiglu_alpha, source->config.swiglu_alpha);
    EXPECT_EQ(again->config.swiglu_limit, source->config.swiglu_limit);
    EXPECT_EQ(again->config.sliding, source->config.sliding);
    const Status gguf = write_gguf(source.value(), out + ".gguf", {});
    EXPECT_EQ(gguf.ok(), i == 0) << gguf.message();
    if (gguf.ok()) {
      EXPECT_EQ(open_checkpoint(out + ".gguf")->config.rope, source->config.rope);
    } else {
      EXPECT_NE(gguf.message().find("GGUF cannot hold"), std::string::npos) << gguf.message();
    }
  }
}

// Whatever convert makes of a tensor, a NaN in it is an error that names it, and so is a value that the
// format cannot hold. Nothing is left behind.
TEST_F(ModelFolder, ConvertRefusesWhatIsNoNumber) {
  fs::remove_all(folder_);
  fs::copy(std::string(MOESAIC_SOURCE_DIR) + "/tests/golden/model/tiny-bf16", folder_);
  const std::string file = get("model.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  const Json header = Json::parse(file.substr(sizeof length, length));
  const std::pair<const char*, const char*> tensors[] = {
      {"model.embed_tokens.weight", "token_embd.weight"},
      {"lm_head.weight", "output.weight"},
      {"model.norm.weight", "output_norm.weight"},
      {"model.layers.1.self_attn.v_proj.weight", "blk.1.attn_v.weight"},
      {"model.layers.0.mlp.router.weight", "blk.0.ffn_gate_inp.weight"},
      {"model.layers.0.mlp.experts.gate_up_proj", "blk.0.ffn_"},
      {"model.layers.1.mlp.experts.down_proj", "blk.1.ffn_down_exps"},
      {"model.layers.1.mlp.experts.gate_up_proj_bias", "blk.1.ffn_"}};
  for (const auto& [name, in_gguf] : tensors) {
    for (const uint16_t code : {uint16_t{0x7FC0}, uint16_t{0xFF80}}) {
      SCOPED_TRACE(fmt::format("{} {:x}", name, code));
      std::string damaged = file;
      const size_t end = sizeof length + length + header[name]["data_offsets"][1].get<size_t>();
      std::memcpy(&damaged[end - 2], &code, sizeof code);
      put("model.safetensors", damaged);
      const auto source = open_checkpoint(folder_.string());
      ASSERT_TRUE(source.ok()) << source.status().message();
      for (const auto dense :
           {std::optional<Format>(), std::optional(Format::kQ8_0), std::optional(Format::kBF16)}) {
        const Status gguf =
            write_gguf(source.value(), path("m.gguf"), {.experts = ExpertsOut::kMxfp4, .dense = dense});
        EXPECT_NE(gguf.message().find(in_gguf), std::string::npos) << gguf.message();
        EXPECT_FALSE(fs::exists(path("m.gguf")));
      }
      for (const auto dense : {std::optional<Format>(), std::optional(Format::kMxfp8)}) {
        for (const ExpertsOut experts : {ExpertsOut::kKeep, ExpertsOut::kMxfp4}) {
          const Status folder =
              write_safetensors(source.value(), path("out"), {.experts = experts, .dense = dense});
          EXPECT_NE(folder.message().find(name), std::string::npos) << folder.message();
          fs::remove_all(path("out"));
        }
      }
    }
  }
}

}  // namespace
}  // namespace moesaic
