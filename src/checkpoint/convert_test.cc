// Tests the files that convert writes beside the weights, and those that it leaves behind.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "base/temporary_folder.h"
#include "checkpoint/chat_files.h"
#include "checkpoint/config_reader.h"
#include "checkpoint/gguf.h"
#include "checkpoint/json.h"
#include "checkpoint/output_file.h"
#include "checkpoint/writer.h"
#include "core/o200k_pattern.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTokenizer =
    R"({"model": {"vocab": {"a": 0, "b": 1}, "merges": []}, "added_tokens": [
        {"content": "<|return|>", "id": 3}, {"content": "<|endoftext|>", "id": 4}, {"content": "<|call|>", "id": 5}]})";

class ConvertFiles : public FolderTest {
 protected:
  ConvertFiles() {
    fs::copy(std::string(MOESAIC_SOURCE_DIR) + "/tests/golden/model/tiny-mxfp4", folder_ / "source");
    put("source/tokenizer.json", kTokenizer);
  }
  Checkpoint open(const std::string& name) const {
    auto checkpoint = open_checkpoint(path(name));
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    return std::move(checkpoint).value();
  }
  std::string template_in(const std::string& gguf) const {
    const auto file = read_gguf(MappedFile::open(path(gguf)).value());
    return std::get<std::string>(file->metadata.at("tokenizer.chat_template"));
  }
};

TEST_F(ConvertFiles, TheChatTemplateTravels) {
  const Checkpoint none = open("source");
  ASSERT_TRUE(write_gguf(none, path("own.gguf"), {}).ok());
  EXPECT_EQ(template_in("own.gguf"), gpt_oss_chat_template());
  EXPECT_NE(template_in("own.gguf").find("<|channel|>analysis<|message|>"), std::string::npos);
  const auto lines = remarks(none, {}, true);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("gpt-oss's own"), std::string::npos);
  const std::pair<const char*, const char*> sources[] = {
      {"tokenizer_config.json",
       R"({"chat_template": [{"name": "x"}, {"name": "default", "template": "third"}]})"},
      {"tokenizer_config.json", R"({"chat_template": "second"})"},
      {"chat_template.jinja", "first"}};
  for (const auto& [name, text] : sources) {
    put("source/" + std::string(name), text);
    const Checkpoint source = open("source");
    EXPECT_TRUE(remarks(source, {}, true).empty());
    ASSERT_TRUE(write_gguf(source, path("a.gguf"), {.overwrite = true}).ok());
    EXPECT_NE(std::string(text).find(template_in("a.gguf")), std::string::npos) << template_in("a.gguf");
  }
  // And back.
  ASSERT_TRUE(write_safetensors(open("a.gguf"), path("back"), {}).ok());
  EXPECT_EQ(get("back/chat_template.jinja"), "first");
  put("source/tokenizer_config.json", "{");
  fs::remove(path("source/chat_template.jinja"));
  EXPECT_FALSE(write_gguf(open("source"), path("b.gguf"), {}).ok());
}

TEST_F(ConvertFiles, AChatTemplateThatIsNotUtf8IsRefused) {
  put("source/chat_template.jinja", "first");
  ASSERT_TRUE(write_gguf(open("source"), path("a.gguf"), {}).ok());
  std::string gguf = get("a.gguf");
  gguf.at(gguf.find("first") + 1) = '\xFF';
  put("broken.gguf", gguf);
  put("source/chat_template.jinja", "f\xFFrst");
  for (const char* source : {"source", "broken.gguf"}) {
    const Checkpoint checkpoint = open(source);
    for (const Status& status :
         {write_gguf(checkpoint, path("b.gguf"), {}), write_safetensors(checkpoint, path("b"), {})})
      EXPECT_NE(status.message().find("chat template is not UTF-8"), std::string::npos)
          << source << ": " << status.message();
    EXPECT_FALSE(fs::exists(path("b.gguf")));
    EXPECT_TRUE(remarks(checkpoint, {}, true).empty());
  }
}

// GGUF names the pattern by which text is split, and has no name for others.
TEST_F(ConvertFiles, ATokenizerThatSplitsOtherwiseStaysInAFolder) {
  const Json vocab = {{"vocab", {{"a", 0}, {"b", 1}}}, {"merges", Json::array()}};
  const auto split = [](const std::string& regex) {
    return Json{{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}};
  };
  const Json bytes = {{"type", "ByteLevel"}, {"use_regex", false}};
  const auto written = [&](const Json& pre) {
    put("source/tokenizer.json", Json{{"model", vocab}, {"pre_tokenizer", pre}}.dump());
    EXPECT_TRUE(write_safetensors(open("source"), path("made"), {.overwrite = true}).ok());
    return write_gguf(open("source"), path("a.gguf"), {.overwrite = true}).message();
  };
  const auto sequence = [&](const Json& step) {
    return Json{{"type", "Sequence"}, {"pretokenizers", {step, bytes}}};
  };
  const std::string refused = "GGUF cannot hold a tokenizer that splits text otherwise than gpt-oss's";
  EXPECT_EQ(written(sequence(split(kO200kPattern))), "");
  for (const Json& pre : {sequence(split(R"(\p{N})")), split(R"(\p{N})"), Json{{"type", "ByteLevel"}}})
    EXPECT_NE(written(pre).find(refused), std::string::npos) << pre;
}

TEST_F(ConvertFiles, AFolderHasWhatTransformersAsksFor) {
  ASSERT_TRUE(write_gguf(open("source"), path("a.gguf"), {}).ok());
  ASSERT_TRUE(write_safetensors(open("a.gguf"), path("made"), {}).ok());
  const Json tokenizer = Json::parse(get("made/tokenizer_config.json"));
  EXPECT_EQ(tokenizer["tokenizer_class"], "PreTrainedTokenizerFast");
  EXPECT_EQ(Json::parse(get("made/generation_config.json"))["eos_token_id"], Json({3, 4, 5}));
  EXPECT_EQ(get("made/chat_template.jinja"), gpt_oss_chat_template());
  // Without harmony's ends of a turn the configuration's own is the end.
  put("source/tokenizer.json", R"({"model": {"vocab": {"a": 0, "b": 1}, "merges": []}, "added_tokens": []})");
  ASSERT_TRUE(write_safetensors(open("source"), path("other"), {}).ok());
  EXPECT_EQ(Json::parse(get("other/generation_config.json"))["eos_token_id"], Json({63}));
  // Files of the source go along as they are.
  put("source/generation_config.json", R"({"temperature": 0.5})");
  put("source/special_tokens_map.json", R"({"pad_token": "x"})");
  ASSERT_TRUE(write_safetensors(open("source"), path("copied"), {}).ok());
  EXPECT_EQ(get("copied/generation_config.json"), get("source/generation_config.json"));
  EXPECT_EQ(get("copied/special_tokens_map.json"), get("source/special_tokens_map.json"));
  // Nothing of anybody's is replaced unasked.
  fs::create_directories(path("theirs"));
  put("theirs/generation_config.json", "mine");
  const Status status = write_safetensors(open("source"), path("theirs"), {});
  EXPECT_NE(status.message().find("generation_config.json: it exists already"), std::string::npos);
  EXPECT_FALSE(fs::exists(path("theirs/model.safetensors")));
}

// A folder in a file's place, and a disk that has no room for the last file.
TEST_F(ConvertFiles, AFolderThatFailsHasNoNewFile) {
  const auto names = [&] {
    return std::distance(fs::directory_iterator(folder_ / "out"), fs::directory_iterator());
  };
  for (const char* name : {"tokenizer.json", "config.json", "chat_template.jinja", "model.safetensors"}) {
    fs::create_directories(path("out/") + name);
    const Status status = write_safetensors(open("source"), path("out"), {.overwrite = true});
    EXPECT_NE(status.message().find(std::string("out/") + name), std::string::npos) << status.message();
    EXPECT_EQ(names(), 1) << name;
    fs::remove_all(path("out"));
  }
  const auto most = static_cast<rlim_t>(fs::file_size(path("source/model.safetensors")) + 100'000);
  put("source/tokenizer.json", kTokenizer + std::string(most, ' '));
  const Checkpoint source = open("source");
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{.rlim_cur = most, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const Status full = write_safetensors(source, path("out"), {});
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(full.message().find("tokenizer.json: cannot write"), std::string::npos) << full.message();
  EXPECT_FALSE(fs::exists(path("out")));
}

// Some GGUF files have all that is no expert in Q8_0, which safetensors has no type for.
TEST_F(ConvertFiles, BiasesThatAreRoundedAreNamed) {
  Checkpoint source = open("source");
  EXPECT_TRUE(roundings(source, {}, false).empty());
  source.weights.layers[0].q_bias.format = Format::kQ8_0;
  const std::vector<std::string> lines = roundings(source, {}, false);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0], "norms, biases or routers in Q8_0 are rounded to BF16");
  EXPECT_TRUE(roundings(source, {}, true).empty());
}

TEST_F(ConvertFiles, WhatOnlyThisProjectReadsHasANameOfItsOwn) {
  const WriteOptions mxfp8{.dense = Format::kMxfp8};
  const auto lines = remarks(open("source"), mxfp8, false);
  ASSERT_FALSE(lines.empty());
  EXPECT_NE(lines[0].find("no other program reads"), std::string::npos);
  ASSERT_TRUE(write_safetensors(open("source"), path("a"), mxfp8).ok());
  ASSERT_TRUE(write_safetensors(open("a"), path("b"), {}).ok());  // kept
  ASSERT_TRUE(write_safetensors(open("a"), path("c"), {.dense = Format::kBF16}).ok());
  const auto method = [&](const char* name) {
    return Json::parse(get(name))["quantization_config"]["quant_method"].get<std::string>();
  };
  EXPECT_EQ(method("a/config.json"), "moesaic_mxfp8");
  EXPECT_EQ(method("b/config.json"), "moesaic_mxfp8");
  EXPECT_EQ(method("c/config.json"), "mxfp4");
}

TEST_F(ConvertFiles, AnUnfinishedFileHasNoName) {
  fs::create_directories(path("out"));
  const auto names = [&] {
    return std::distance(fs::directory_iterator(folder_ / "out"), fs::directory_iterator());
  };
  {
    auto file = OutputFile::create(path("out/a"), false);
    ASSERT_TRUE(file.ok()) << file.status().message();
    ASSERT_TRUE(file->write(std::string("text")).ok());
    if (names() != 0) GTEST_SKIP() << "this file system has no files without a name";
  }
  EXPECT_EQ(names(), 0);
  put("out/a.part", "somebody else's");
  for (const char* text : {"first", "second"}) {
    auto file = OutputFile::create(path("out/a"), true);
    ASSERT_TRUE(file.ok() && file->write(std::string(text)).ok() && file->commit().ok());
    EXPECT_EQ(get("out/a"), text);
    EXPECT_EQ(names(), 2);
  }
  EXPECT_EQ(get("out/a.part"), "somebody else's");
}

TEST_F(ConvertFiles, ALinkStays) {
  fs::create_directories(path("out"));
  fs::create_symlink("out/a", path("link"));
  for (const bool there : {false, true}) {
    auto file = OutputFile::create(path("link"), there);
    ASSERT_TRUE(file.ok() && file->write(std::string("text")).ok() && file->commit().ok());
    EXPECT_TRUE(fs::is_symlink(path("link")));
    EXPECT_EQ(get("out/a"), "text");
  }
}

}  // namespace
}  // namespace moesaic
