// Names for -m: of caches, folders and parts of models, each in a temporary tree.
#include "checkpoint/find_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/temporary_folder.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf.h"
#include "checkpoint/gguf_header.h"
#include "checkpoint/model_list.h"
#include "checkpoint/writer.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

class FindModel : public FolderTest {
 protected:
  FindModel() { fs::permissions(folder_, fs::perms(0755)); }  // AsNobody looks into it

  std::string hub() const { return path("hub"); }
  std::string found(const std::string& name) const {
    const Result<std::string> result = find_model(name, {.hub = hub()});
    return result.ok() ? result.value() : "error: " + result.status().message();
  }
  void expect_error(const std::string& name, const std::vector<std::string>& words) const {
    const Result<std::string> result = find_model(name, {.hub = hub()});
    ASSERT_FALSE(result.ok()) << name << ": " << result.value();
    for (const std::string& word : words)
      EXPECT_NE(result.status().message().find(word), std::string::npos) << result.status().message();
    EXPECT_EQ(result.status().message().find('\n'), std::string::npos);
  }
};

// Another user, whom modes of files bind, where the tests run as root.
class AsNobody {
 public:
  AsNobody() { EXPECT_EQ(seteuid(getuid() == 0 ? 65534 : getuid()), 0); }
  ~AsNobody() { EXPECT_EQ(seteuid(getuid()), 0); }
  AsNobody(const AsNobody&) = delete;
  AsNobody& operator=(const AsNobody&) = delete;
};

TEST_F(FindModel, WhatMayNotBeLookedAtIsNamed) {
  put("closed/config.json"), put("hub/models--a--b/snapshots/x/config.json"),
      put("hub/models--c--d/snapshots/x/config.json");
  put("store/manifests/registry.ollama.ai/library/m/latest"), put("store/blobs/x");
  for (const char* name : {"closed", "hub/models--a--b", "hub/models--c--d/snapshots", "store"})
    fs::permissions(path(name), fs::perms::none);
  {
    const AsNobody nobody;
    for (const std::string& name : {path("closed"), path("closed/sub"), std::string("a/b"),
                                    std::string("c/d"), std::string("c/d:Q8_0")})
      expect_error(name, {"Permission denied"});
    const ModelPlaces places{.hub = hub(), .ollama = {path("store")}, .lm_studio = {}};
    EXPECT_NE(find_model("m", places)
                  .status()
                  .message()
                  .find("; not looked at: " + path("store") + ": Permission denied"),
              std::string::npos);
    EXPECT_EQ(closed_places(places).size(), 1u);
  }
  for (const char* name : {"closed", "hub/models--a--b", "hub/models--c--d/snapshots", "store"})
    fs::permissions(path(name), fs::perms::owner_all);
}

TEST_F(FindModel, LinksThatLeadNowhere) {
  fs::create_symlink("/nowhere/x", path("lost.gguf")), fs::create_symlink("self.gguf", path("self.gguf"));
  expect_error(path("lost.gguf"), {"a link to /nowhere/x, which is not there"});
  expect_error(path("self.gguf"), {"Too many levels of symbolic links"});
}

TEST_F(FindModel, LinksDoNotMakeAModelTwo) {
  put("m/a/q.gguf");
  fs::create_symlink(".", path("m/a/loop")), fs::create_symlink("..", path("m/a/up")),
      fs::create_symlink("b", path("m/b"));
  fs::create_directory_symlink("a", path("m/A")), fs::create_symlink("a/q.gguf", path("m/z.gguf"));
  EXPECT_EQ(found(path("m/a")), path("m/a/q.gguf"));
  EXPECT_EQ(found(path("m")), path("m/z.gguf"));
  std::vector<FoundModel> models = models_below(path("m"));
  EXPECT_EQ(models.size(), 2u);
  EXPECT_EQ(models.back().name, "a/q.gguf");  // not A/q.gguf
}

TEST_F(FindModel, PathsStayAsTheyAre) {
  put("a/config.json");
  EXPECT_EQ(found(path("a")), path("a"));
  EXPECT_EQ(found(put("b.gguf")), path("b.gguf"));
  EXPECT_EQ(found(put("blob")), path("blob"));
  expect_error(path("none"), {"no such file, folder or model"});
}

TEST_F(FindModel, AFolderWithOneGguf) {
  put("one/m.gguf"), put("one/README.md");
  EXPECT_EQ(found(path("one")), path("one/m.gguf"));
  for (const char* part : {"2", "3", "1"}) put(fmt::format("split/m-0000{}-of-00003.gguf", part));
  EXPECT_EQ(found(path("split")), path("split/m-00001-of-00003.gguf"));
  put("two/a.gguf"), put("two/b.gguf");
  expect_error(path("two"), {"several models", "a.gguf, b.gguf"});
  fs::create_directories(path("empty"));
  expect_error(path("empty"), {"no config.json and no .gguf file"});
}

TEST_F(FindModel, PipesAndDevicesAreNoModels) {
  put("some/m.gguf");
  ASSERT_EQ(mkfifo(path("some/pipe.gguf").c_str(), 0600), 0);
  fs::create_symlink("/dev/zero", path("some/device.gguf"));
  EXPECT_EQ(found(path("some")), path("some/m.gguf"));
}

TEST_F(FindModel, OwnerAndName) {
  expect_error("openai/gpt-oss-20b", {hub(), "moesaic pull openai/gpt-oss-20b"});
  const std::string repository = "hub/models--openai--gpt-oss-20b/";
  put(repository + "snapshots/abc/config.json"), put(repository + "snapshots/old/config.json");
  expect_error("openai/gpt-oss-20b", {"no complete snapshot", "moesaic pull openai/gpt-oss-20b"});
  put(repository + "refs/main", "abc\n"), put(repository + "snapshots/abc/model.safetensors");
  for (const std::string& name :
       {std::string("openai/gpt-oss-20b"), path(repository), hub(), folder_.string()})
    EXPECT_EQ(found(name), path(repository + "snapshots/abc")) << name;
  put("hub/models--ggml-org--gpt-oss-20b-GGUF/snapshots/1/gpt-oss-20b-MXFP4.gguf");
  EXPECT_EQ(found("ggml-org/gpt-oss-20b-GGUF"),
            path("hub/models--ggml-org--gpt-oss-20b-GGUF/snapshots/1/gpt-oss-20b-MXFP4.gguf"));
  expect_error(hub(), {"several models", "openai/gpt-oss-20b", "ggml-org/gpt-oss-20b-GGUF"});
}

TEST_F(FindModel, AQuantisationOfAnEarlierSnapshot) {
  const std::string repository = "hub/models--o--n/";
  put(repository + "refs/main", "new"), put(repository + "snapshots/new/m-F16.gguf");
  const std::string old = put(repository + "snapshots/old/m-Q8_0.gguf");
  EXPECT_EQ(found("o/n"), path(repository + "snapshots/new/m-F16.gguf"));
  EXPECT_EQ(found("o/n:Q8_0"), old);
  EXPECT_EQ(found("o/n/m-Q8_0.gguf"), old);
  expect_error("o/n:Q2_K", {"not here, but m-F16.gguf", "moesaic pull o/n:Q2_K"});
}

// A snapshot that moesaic is fetching has no ref yet.
TEST_F(FindModel, AnUnfinishedPull) {
  put("hub/models--o--n/snapshots/1/config.json"), put("hub/models--o--n/blobs/abc.incomplete");
  expect_error("o/n", {"no complete snapshot", "moesaic pull o/n"});
}

// One that huggingface_hub is fetching has its ref: nothing but small files, some of the parts, a lost blob.
TEST_F(FindModel, ASnapshotWithoutAllItsFiles) {
  const std::string snapshot = "hub/models--o--n/snapshots/1/";
  put("hub/models--o--n/refs/main", "1"), put(snapshot + "config.json", "{}");
  const auto absent = [&](const std::string& name) {
    expect_error(name, {name + ": not all of its files are here; get the rest: moesaic pull " + name});
    EXPECT_EQ(find_model(name, {.hub = hub()}).status().code(), StatusCode::kNotFound);
  };
  absent("o/n"), absent("o/n@1");
  put(snapshot + "model-00001-of-00002.safetensors");
  absent("o/n");
  put(snapshot + "model.safetensors.index.json",
      R"({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}})");
  absent("o/n");
  fs::create_symlink("../../blobs/b", path(snapshot + "model-00002-of-00002.safetensors"));
  absent("o/n");
  put("hub/models--o--n/blobs/b");
  EXPECT_EQ(found("o/n") + "/", path(snapshot));
  put(snapshot + "m-Q8_0-00001-of-00002.gguf"), put(snapshot + "m-F16.gguf");
  absent("o/n:Q8_0"), absent("o/n/m-Q8_0-00001-of-00002.gguf");
  EXPECT_EQ(found("o/n:F16"), path(snapshot + "m-F16.gguf"));
  put("hub/models--o--n/snapshots/0/m-Q8_0.gguf");
  EXPECT_EQ(found("o/n:Q8_0"), path("hub/models--o--n/snapshots/0/m-Q8_0.gguf"));
}

// ggml-org's repositories hold draft heads beside the model.
TEST_F(FindModel, ADraftHeadIsFoundByItsFileAlone) {
  const std::string snapshot = "hub/models--o--gpt-oss-GGUF/snapshots/1/",
                    head = "eagle3-gpt-oss-20b-Q8_0.gguf";
  put("hub/models--o--gpt-oss-GGUF/refs/main", "1"), put(snapshot + head);
  expect_error("o/gpt-oss-GGUF", {"only a draft head of it is here", "moesaic pull o/gpt-oss-GGUF"});
  expect_error("o/gpt-oss-GGUF:Q8_0",
               {"only a draft head of it is here", "moesaic pull o/gpt-oss-GGUF:Q8_0"});
  EXPECT_EQ(find_model("o/gpt-oss-GGUF", {.hub = hub()}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(models_here({.hub = hub()}).at(0).name, "o/gpt-oss-GGUF/" + head);
  EXPECT_EQ(find_adapter("o/gpt-oss-GGUF", {.hub = hub()}).value(), path(snapshot + head));
  put(snapshot + "eagle3-gpt-oss-20b-BF16.gguf");
  EXPECT_EQ(find_adapter("o/gpt-oss-GGUF:Q8_0", {.hub = hub()}).value(), path(snapshot + head));
  std::filesystem::remove(path(snapshot + "eagle3-gpt-oss-20b-BF16.gguf"));
  put(snapshot + "gpt-oss-20b-MXFP4.gguf");
  for (const char* name : {"o/gpt-oss-GGUF", "o/gpt-oss-GGUF:MXFP4"})
    EXPECT_EQ(found(name), path(snapshot + "gpt-oss-20b-MXFP4.gguf"));
  EXPECT_EQ(found(path(snapshot)), path(snapshot + "gpt-oss-20b-MXFP4.gguf"));
  expect_error("o/gpt-oss-GGUF:Q8_0", {"not here, but gpt-oss-20b-MXFP4.gguf"});
  EXPECT_EQ(found("o/gpt-oss-GGUF/" + head), path(snapshot + head));
  std::vector<std::string> names;
  for (const FoundModel& model : models_here({.hub = hub()})) {
    if (model.place == "Hugging Face") names.push_back(model.name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"o/gpt-oss-GGUF/" + head, "o/gpt-oss-GGUF:MXFP4"}));
}

TEST_F(FindModel, ADraftHeadBesideAFolder) {
  for (const std::string& place :
       {std::string("hub/models--o--gpt-oss/snapshots/1/"), std::string("lm/models/o/gpt-oss/")}) {
    for (const char* name : {"config.json", "model.safetensors", "eagle3-gpt-oss-20b.gguf"})
      put(place + name);
    const auto found = find_model(
        "o/gpt-oss", place[0] == 'h' ? ModelPlaces{.hub = hub()} : ModelPlaces{.lm_studio = {path("lm")}});
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(found.value() + "/", path(place));
  }
}

TEST_F(FindModel, ACacheOfOtherModels) {
  put("hub/models--a--b/snapshots/1/config.json");
  expect_error(hub(), {"no gpt-oss model", "moesaic pull openai/gpt-oss-20b"});
}

TEST_F(FindModel, NamesThatAreNoRepositoryDoNotLeaveTheCache) {
  put("secret/config.json"), put("hub/x");
  for (const char* name : {"../secret", "a/../secret", "a/b/c", "a/", "/a", "", ".a/b", "a/.b", "a b/c"})
    expect_error(name, {"no such file, folder or model"});
}

TEST_F(FindModel, ARefThatLeadsOutOfTheCacheIsNotFollowed) {
  put("hub/models--a--b/snapshots/1/config.json"), put("hub/models--a--b/snapshots/2/config.json");
  put("hub/models--a--b/refs/main", "../../../../secret");
  put("secret/config.json");
  expect_error("a/b", {"no complete snapshot"});
}

// Neither waited for nor read without end.
TEST_F(FindModel, ARefThatIsNoFile) {
  const std::string ref = put("hub/models--a--b/refs/main");
  put("hub/models--a--b/snapshots/1/config.json"), put("hub/models--a--b/snapshots/2/config.json");
  fs::remove(ref);
  fs::create_symlink("/dev/zero", ref);
  expect_error("a/b", {"no complete snapshot"});
  fs::remove(ref);
  ASSERT_EQ(mkfifo(ref.c_str(), 0600), 0);
  expect_error("a/b", {"no complete snapshot"});
  fs::remove(ref);
  put("hub/models--a--b/refs/main", std::string(1 << 20, '1'));
  expect_error("a/b", {"no complete snapshot"});
}

TEST(GgufParts, ByTheName) {
  EXPECT_EQ(gguf_parts("d/a-00002-of-00003.gguf"),
            (std::vector<std::string>{"d/a-00001-of-00003.gguf", "d/a-00002-of-00003.gguf",
                                      "d/a-00003-of-00003.gguf"}));
  for (const char* other :
       {"a.gguf", "a-00004-of-00003.gguf", "a-00000-of-00003.gguf", "a-00001-of-00000.gguf",
        "a-0001-of-00003.gguf", "a-00001-of-00003.txt", "a-00001_of-00003.gguf", "-of-", ""})
    EXPECT_EQ(gguf_parts(other), std::vector<std::string>{other});
}

// The tiny model in three parts, as llama.cpp's gguf-split makes them: the metadata in the first, the tensors
// dealt out.
class SplitGguf : public FindModel {
 protected:
  SplitGguf() {
    const auto source = open_checkpoint(std::string(MOESAIC_SOURCE_DIR) + "/tests/golden/model/tiny-mxfp4");
    EXPECT_TRUE(write_gguf(source.value(), path("whole.gguf"), {}).ok());
    whole_ = read_gguf(MappedFile::open(path("whole.gguf")).value()).value();
  }
  static std::string part_name(int i) { return fmt::format("m-0000{}-of-00003.gguf", i + 1); }

  // split.no and split.count as given; tensors i, i + 3, ..
  void write_part(int i, int number, int count) {
    GgufHeader header;
    if (i == 0) {
      for (const auto& [key, value] : whole_.metadata) put_value(header, key, value);
    }
    header.u32("split.no", number), header.u32("split.count", count);
    std::string data;
    uint64_t tensors = 0;
    int at = 0;
    for (const auto& [name, tensor] : whole_.tensors.tensors) {
      if (at++ % 3 != i) continue;
      data.resize((data.size() + 31) / 32 * 32);
      header.tensor(name, tensor.shape, type_of(tensor.dtype), data.size());
      data.append(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
      ++tensors;
    }
    std::string head = header.finish(tensors);
    head.resize((head.size() + 31) / 32 * 32);
    put(part_name(i), head + data);
  }
  static uint32_t type_of(const std::string& dtype) {
    return dtype == "F32" ? 0 : dtype == "F16" ? 1 : dtype == "Q8_0" ? 8 : dtype == "BF16" ? 30 : 39;
  }
  static void put_value(GgufHeader& h, const std::string& key, const GgufValue& value) {
    if (const auto* i = std::get_if<int64_t>(&value)) h.u32(key, static_cast<uint32_t>(*i));
    if (const auto* d = std::get_if<double>(&value)) h.f32(key, *d);
    if (const auto* b = std::get_if<bool>(&value)) h.boolean(key, *b);
    if (const auto* s = std::get_if<std::string>(&value)) h.text(key, *s);
    if (const auto* t = std::get_if<std::vector<std::string>>(&value)) h.texts(key, *t);
    if (const auto* n = std::get_if<std::vector<int64_t>>(&value)) h.integers(key, {n->begin(), n->end()});
  }
  void expect_error(const std::string& name, const std::vector<std::string>& words) {
    const auto result = open_checkpoint(path(name));
    ASSERT_FALSE(result.ok()) << name;
    for (const std::string& word : words)
      EXPECT_NE(result.status().message().find(word), std::string::npos) << result.status().message();
  }
  GgufFile whole_;
};

TEST_F(SplitGguf, AnyPartOpensAll) {
  for (int i = 0; i < 3; ++i) write_part(i, i, 3);
  const auto whole = open_checkpoint(path("whole.gguf"));
  ASSERT_TRUE(whole.ok());
  for (int i = 0; i < 3; ++i) {
    const auto split = open_checkpoint(path(part_name(i)));
    ASSERT_TRUE(split.ok()) << split.status().message();
    ASSERT_EQ(split->tensors.size(), whole->tensors.size());
    std::vector<float> a(whole->config.hidden), b(whole->config.hidden);
    for (int layer = 0; layer < whole->config.layers; ++layer) {
      for (int64_t row = 0; row < whole->weights.layers[layer].q.rows; ++row) {
        read_row(whole->weights.layers[layer].q, row, a), read_row(split->weights.layers[layer].q, row, b);
        ASSERT_EQ(a, b);
      }
    }
  }
}

TEST_F(SplitGguf, PartsThatAreMissingOrOfAnotherModelAreErrors) {
  for (int i = 0; i < 3; ++i) write_part(i, i, 3);
  fs::remove(path(part_name(1)));
  expect_error(part_name(0), {part_name(1), "missing", "3 parts"});
  write_part(1, 2, 3);
  expect_error(part_name(0), {part_name(1), "part 3 of 3", "2 of 3"});
  write_part(1, 1, 4);
  expect_error(part_name(2), {part_name(1), "part 2 of 4"});
  fs::copy_file(path(part_name(0)), path(part_name(1)), fs::copy_options::overwrite_existing);
  expect_error(part_name(0), {part_name(1), "part 1 of 3"});
  fs::copy_file(path(part_name(0)), path("renamed.gguf"));
  expect_error("renamed.gguf", {"part 1 of a model in 3 parts", "-00001-of-00003.gguf"});
}

TEST_F(SplitGguf, ABlobWithoutSuffixIsAGguf) {
  fs::copy_file(path("whole.gguf"), path("sha256-0123"));
  EXPECT_TRUE(open_checkpoint(path("sha256-0123")).ok());
}

}  // namespace
}  // namespace moesaic
