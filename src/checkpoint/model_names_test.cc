// Tags of GGUF files, names of repositories, Ollama's stores in both layouts, and choosing by architecture.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/temporary_folder.h"
#include "checkpoint/find_model.h"
#include "checkpoint/gguf_header.h"
#include "checkpoint/model_list.h"
#include "checkpoint/ollama_store.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

TEST(GgufTags, ByTheName) {
  EXPECT_EQ(gguf_tag("gpt-oss-20b-mxfp4.gguf"), "MXFP4");
  EXPECT_EQ(gguf_tag("a/gpt-oss-20b-UD-Q4_K_XL.gguf"), "Q4_K_XL");
  EXPECT_EQ(gguf_tag("Q8_0/gpt-oss-120b.Q8_0-00002-of-00003.gguf"), "Q8_0");
  EXPECT_EQ(gguf_tag("x-F16-00001-of-00001.gguf"), "F16");
  for (const char* none : {"", "model.gguf", "model-.gguf", "model-Q8_0.safetensors", ".gguf"})
    EXPECT_EQ(gguf_tag(none), "") << none;
}

TEST(GgufTags, MeanModels) {
  const Names all = {"m-Q4_0.gguf", "m-Q4_K_M.gguf",  "m-UD-Q4_K_XL.gguf",
                     "m-Q8_0.gguf", "m-UD-Q8_0.gguf", "BF16/m-00001-of-00002.gguf"};
  const auto meant = [&](const char* tag) { return with_gguf_tag(all, tag); };
  EXPECT_EQ(meant("q4_k_m"), Names{"m-Q4_K_M.gguf"});
  EXPECT_EQ(meant("Q4_K_XL"), Names{"m-UD-Q4_K_XL.gguf"});
  EXPECT_EQ(meant("UD-Q4_K_XL"), Names{"m-UD-Q4_K_XL.gguf"});
  EXPECT_EQ(meant("Q8_0"), Names{"m-Q8_0.gguf"});
  EXPECT_EQ(meant("UD-Q8_0"), Names{"m-UD-Q8_0.gguf"});
  EXPECT_EQ(meant("BF16"), Names{"BF16/m-00001-of-00002.gguf"});
  const Names two = {"m-f16-Q8_0.gguf", "m-F16.gguf"};  // one by its tag, both by a word
  EXPECT_EQ(with_gguf_tag(two, "F16"), Names{"m-F16.gguf"});
  for (const char* none : {"", "Q4", "Q4_K", "8_0", "gguf2", "Q4_K_M_"})
    EXPECT_TRUE(meant(none).empty()) << none;
}

TEST(GgufModels, OnceEachAndOnlyModels) {
  const Names names = {"b-00002-of-00002.gguf", "b-00001-of-00002.gguf", "a.gguf",
                       "mmproj-F16.gguf",       "m.imatrix.gguf",        "README.md"};
  EXPECT_EQ(gguf_models(names), (Names{"a.gguf", "b-00001-of-00002.gguf"}));
}

TEST(GgufModels, WithoutTheHeadsBesideThem) {
  const Names heads = {"d/DFlash-m-F16.gguf", "dspark-m.gguf", "eagle3-m-Q8_0.gguf", "mtp-m.gguf"};
  EXPECT_EQ(without_heads(heads), heads);
  Names all = heads;
  const Names models = {"m-eagle3-Q8_0.gguf", "draft-m.gguf", "mtp-model"};
  all.insert(all.end(), models.begin(), models.end());
  EXPECT_EQ(without_heads(all), models);
}

TEST(RepositoryNames, Parse) {
  EXPECT_EQ(repository_name("openai/gpt-oss-20b")->repository, "openai/gpt-oss-20b");
  EXPECT_EQ(repository_name("a/b:UD-Q4_K_XL")->tag, "UD-Q4_K_XL");
  EXPECT_EQ(repository_name("a/b/c/d.gguf")->file, "c/d.gguf");
  EXPECT_EQ(repository_name("a/b/c/d.gguf")->repository, "a/b");
  for (const char* none : {"", "a", "a/", "/a", "a//b.gguf", "a/b/", "a/b:", "a/b/c", "a/b/../c.gguf",
                           "a/b/./c.gguf", "../b", "a/..", "a/b..c", "a b/c", "a/b:c/d", "a/b.gguf", "a/.b"})
    EXPECT_FALSE(repository_name(none)) << none;
  EXPECT_EQ(repository_name(" a/b\n")->repository, "a/b");
  for (const char* name : {"a/b@v1.2", "a/b@v1.2:Q8_0", "a/b@v1.2/c/d.gguf"}) {
    ASSERT_TRUE(repository_name(name)) << name;
    EXPECT_EQ(repository_name(name)->full_name(), "a/b@v1.2") << name;
  }
  EXPECT_EQ(repository_name("a/b@v1.2/c/d.gguf")->file, "c/d.gguf");
  EXPECT_EQ(repository_name("a/b@v1.2:Q8_0")->tag, "Q8_0");
  EXPECT_EQ(repository_name("a/b@main")->full_name(), "a/b");
  for (const char* none :
       {"a@v/b", "a/b@", "a/b@:Q8_0", "a/b@../c", "a/b@..", "a/b@v@w", "a/b@refs/pr/1", "a/@v"})
    EXPECT_FALSE(repository_name(none)) << none;
  for (const char* none : {" ", "\n", "a/ b", " /b"}) EXPECT_FALSE(repository_name(none)) << none;
  EXPECT_EQ(repository_of(hub_folder("a/b-c")), "a/b-c");
}

TEST(RepositoryNames, Addresses) {
  const auto text = [](const std::string& name) {
    const auto n = repository_name(name);
    if (!n) return std::string("none");
    return n->full_name() + (n->tag.empty() ? "" : ":" + n->tag) + (n->file.empty() ? "" : "/" + n->file);
  };
  for (const std::string host :
       {"https://huggingface.co/", "http://huggingface.co/", "https://hf.co/", "huggingface.co/",
        "https://www.huggingface.co/", "hf.co/", "HTTPS://HuggingFace.co/", "hf://", "  https://hf.co/"}) {
    for (const char* end : {"", "/", "/tree/main", "/tree/main/", "?library=transformers", "#usage"})
      EXPECT_EQ(text(host + "openai/gpt-oss-20b" + end), "openai/gpt-oss-20b") << host << end;
    EXPECT_EQ(text(host + "a/b:Q8_0 \r\n"), "a/b:Q8_0");
    for (const char* kind : {"/", "/blob/main/", "/resolve/main/"}) {
      EXPECT_EQ(text(host + "a/b" + kind + "c.gguf"), "a/b/c.gguf") << host << kind;
      EXPECT_EQ(text(host + "a/b" + kind + "Q8/c.gguf?download=true"), "a/b/Q8/c.gguf") << host << kind;
    }
    EXPECT_EQ(text(host + "a/b:Q8_0"), "a/b:Q8_0");
    EXPECT_EQ(text(host + "a/b/tree/main/Q8_0"), "a/b:Q8_0");
    EXPECT_EQ(text(host + "a/b/tree/v2"), "a/b@v2");
    EXPECT_EQ(text(host + "a/b/tree/main2/Q8_0"), "a/b@main2:Q8_0");
    EXPECT_EQ(text(host + "a/b/resolve/v2/c.gguf"), "a/b@v2/c.gguf");
    for (const char* none :
         {"", "a", "a/b/blob/main/README.md", "a/b/resolve/main/../c.gguf", "a/b/discussions/1",
          "datasets/a/b", "../a/b", "a/b/tree/main/x/y", "a/b/tree/../x", "a/b/tree/main//x"})
      EXPECT_EQ(text(host + none), "none") << host << none;
  }
  for (const char* none : {"https://example.com/a/b", "https://huggingface.co.example/a/b", "https://a/b",
                           "ftp://hf.co/a/b", "https://huggingface.co@example.com/a/b"})
    EXPECT_EQ(text(none), "none") << none;
}

class Stores : public FolderTest {
 protected:
  // models/ of the folder in which the tests run is a store, too.
  Stores() { fs::current_path(folder_); }
  ~Stores() override { fs::current_path(before_); }

  std::string gguf(const std::string& name, const std::string& architecture) {
    GgufHeader header;
    header.text("general.type", "model");
    header.text("general.architecture", architecture);
    return put(name, header.finish(0));
  }
  static std::string manifest(char digit) {
    return R"({"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:)" +
           std::string(64, digit) + "\"}]}";
  }
  static std::string blob(char digit) { return "blobs/sha256-" + std::string(64, digit); }
  ModelPlaces places() const {
    return {.hub = path("hub"), .ollama = {path("")}, .lm_studio = {path("lms")}};
  }
  std::string found(const std::string& name) const {
    const Result<std::string> result = find_model(name, places());
    return result.ok() ? result.value() : "error: " + result.status().message();
  }

  const fs::path before_ = fs::current_path();
};

TEST_F(Stores, AnotherArchitectureDoesNotCount) {
  const std::string model = gguf("m/model.gguf", "gpt-oss");
  gguf("m/head.gguf", "eagle3"), gguf("m/other-00001-of-00002.gguf", "llama");
  EXPECT_EQ(found(path("m")), model);
  EXPECT_EQ(architecture_of(model), "gpt-oss");
  EXPECT_EQ(architecture_of(put("short.gguf", "GGUF\3")), "");
  EXPECT_EQ(architecture_of(path("none")), "");
  // One entry, "x", of a type that does not exist.
  const std::string unknown = std::string("GGUF\3\0\0\0", 8) + std::string(8, 0) +
                              std::string("\1\0\0\0\0\0\0\0", 8) + std::string("\1\0\0\0\0\0\0\0x", 9) +
                              std::string("c\0\0\0", 4);
  EXPECT_EQ(architecture_of(put("unknown.gguf", unknown)), "");
  gguf("m/Q8_0/model.gguf", "gptoss");
  EXPECT_NE(found(path("m")).find("several models; name one of them: model.gguf, Q8_0/model.gguf"),
            std::string::npos)
      << found(path("m"));
}

// Entries of every type stand before it.
TEST_F(Stores, AnArchitectureBehindOtherEntries) {
  GgufHeader header;
  header.u32("a", 1), header.f32("b", 2), header.boolean("c", true), header.text("d", "general.architecture");
  header.texts("e", {"x", "", "yz"}), header.integers("f", {1, 2, 3});
  header.text("general.architecture", "gpt-oss");
  EXPECT_EQ(architecture_of(put("late.gguf", header.finish(0))), "gpt-oss");
}

TEST_F(Stores, OllamaNames) {
  put(blob('1')), put(blob('2')), put(blob('3'));
  put("manifests/registry.ollama.ai/library/gpt-oss/20b", manifest('1'));
  put("manifests/registry.ollama.ai/me/Tuned/v1", manifest('2'));
  put("manifests/registry.ollama.ai/library/two/a", manifest('1'));
  put("manifests/registry.ollama.ai/library/two/b", manifest('3'));
  for (const char* name : {"gpt-oss:20b", "gpt-oss", "GPT-OSS:20B", "library/gpt-oss:20b",
                           "registry.ollama.ai/library/gpt-oss:20b", "ollama.com/library/gpt-oss"})
    EXPECT_EQ(found(name), path(blob('1'))) << name;
  EXPECT_EQ(found("me/tuned:v1"), path(blob('2')));
  EXPECT_NE(found("two").find("several models; name one of them: two:a, two:b"), std::string::npos)
      << found("two");
  EXPECT_NE(found(path("manifests/registry.ollama.ai/library/two")).find("two:a, two:b"), std::string::npos);
  put("manifests/registry.ollama.ai/library/two/latest", manifest('3'));
  EXPECT_EQ(found("two"), path(blob('3')));
}

TEST_F(Stores, RevisionsOfARepository) {
  const std::string folder = "hub/models--a--b/", config = R"({"model_type": "gpt_oss"})";
  const auto snapshot = [&](const std::string& commit) { return folder + "snapshots/" + commit; };
  for (const char* commit : {"c1", "c2", "c3"}) {
    put(snapshot(commit) + "/config.json", config);
    put(snapshot(commit) + "/model.safetensors");
  }
  put(folder + "refs/main", "c1"), put(folder + "refs/v2", "c2");
  EXPECT_EQ(found("a/b"), path(snapshot("c1")));
  EXPECT_EQ(found("a/b@main"), path(snapshot("c1")));
  EXPECT_EQ(found("a/b@v2"), path(snapshot("c2")));
  EXPECT_EQ(found("a/b@c3"), path(snapshot("c3")));
  EXPECT_NE(found("a/b@v3").find("no complete snapshot of v3; get it again: moesaic pull a/b@v3"),
            std::string::npos)
      << found("a/b@v3");
  put(folder + "blobs/x.incomplete");
  EXPECT_NE(found("a/b@c3").find("no complete snapshot"), std::string::npos) << "it may be c3's";
  EXPECT_EQ(found("a/b@v2"), path(snapshot("c2")));
}

TEST_F(Stores, OllamaModelsAreListedAndAStoreIsAPath) {
  put(blob('1'));
  put("manifests/registry.ollama.ai/library/gpt-oss/20b", manifest('1'));
  const std::vector<FoundModel> models = models_here(places());
  ASSERT_EQ(models.size(), 1u);
  EXPECT_EQ(models[0].name, "gpt-oss:20b");
  EXPECT_EQ(models[0].place, "Ollama");
  EXPECT_EQ(found(folder_.string()), path(blob('1')));
}

// Manifests as blobs with links to them, and lists of manifests of which one has a GGUF file.
TEST_F(Stores, OllamaSecondLayout) {
  put(blob('1'));
  put(blob('a'), manifest('1'));
  fs::create_directories(folder_ / "manifests-v2/registry.ollama.ai/library/gpt-oss");
  fs::create_symlink("../../../../" + blob('a'),
                     folder_ / "manifests-v2/registry.ollama.ai/library/gpt-oss/20b");
  EXPECT_EQ(found("gpt-oss:20b"), path(blob('1')));
  EXPECT_EQ(found(path("manifests-v2/registry.ollama.ai/library/gpt-oss/20b")), path(blob('1')));
  put("manifests-v2/registry.ollama.ai/library/list/latest",
      R"({"mediaType": "application/vnd.ollama.manifest.list.v2+json", "manifests": [{"runner": "mlx",)"
      R"("digest": "sha256:)" +
          std::string(64, 'b') + R"("}, {"runner": "ollama", "digest": "sha256:)" + std::string(64, 'a') +
          "\"}]}");
  EXPECT_EQ(found("list"), path(blob('1')));
}

TEST_F(Stores, DamagedManifestsAreOneLine) {
  fs::create_directories(folder_ / "blobs");
  const std::string name = "manifests/registry.ollama.ai/library/bad/latest";
  for (
      const char* text :
      {"", "x", "[]", "{}", R"({"layers": 1})", R"({"layers": [1, {"mediaType": 2}]})",
       R"({"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../x"}]})",
       R"({"layers": [{"mediaType": "application/vnd.ollama.image.model"}]})",
       R"({"mediaType": "application/vnd.ollama.manifest.list.v2+json"})",
       R"({"mediaType": "application/vnd.ollama.manifest.list.v2+json", "manifests": [1, {"runner": "ollama"}]})"}) {
    put(name, text);
    EXPECT_TRUE(found("bad").starts_with("error: ")) << text;
    EXPECT_EQ(found("bad").find('\n'), std::string::npos) << text;
  }
}

TEST_F(Stores, LmStudioNamesItsFolders) {
  const std::string model = gguf("elsewhere/p/n/m.gguf", "gpt-oss");
  EXPECT_TRUE(found("p/n").starts_with("error: "));
  put("lms/settings.json", R"({"downloadsFolder": ")" + path("elsewhere") + "\"}");
  EXPECT_EQ(found("p/n"), model);
  for (const char* text : {"", "[]", R"({"downloadsFolder": 1})"}) {
    put("lms/settings.json", text);
    EXPECT_TRUE(found("p/n").starts_with("error: ")) << text;
  }
  put("lms/hub/models/openai/x/manifest.json",
      R"({"dependencies": [1, {"sources": [2, {"user": "..", "repo": "p"}, {"user": "p", "repo": "n"}]}]})");
  put("lms/settings.json", R"({"downloadsFolder": ")" + path("elsewhere") + "\"}");
  EXPECT_EQ(found("openai/x"), model);
}

// Models that were there before the folder was moved, and the second of the names that LM Studio gives.
TEST_F(Stores, LmStudioKeepsItsFirstFolder) {
  const std::string own = gguf("lms/models/p/own/m.gguf", "gpt-oss");
  EXPECT_EQ(found("p/own"), own);
  const std::string moved = gguf("elsewhere/p/moved/m.gguf", "gpt-oss");
  put("lms/settings.json", R"({"downloadsFolder": ")" + path("elsewhere") + "\"}");
  EXPECT_EQ(found("p/own"), own);
  EXPECT_EQ(found("p/moved"), moved);
  std::vector<std::string> listed;
  for (const FoundModel& model : models_here(places())) listed.push_back(model.name);
  EXPECT_EQ(listed, (std::vector<std::string>{"p/moved", "p/own"}));
  put("lms/hub/models/openai/x/manifest.json",
      R"({"dependencies": [{"sources": [{"user": "p", "repo": "gone"}, {"user": "p", "repo": "own"}]}]})");
  EXPECT_EQ(found("openai/x"), own);
}

// Revisions without main; GGUF files of an earlier snapshot, as find_model() takes them.
TEST_F(Stores, WhatIsNotInTheCurrentSnapshotIsListed) {
  for (const char* commit : {"c1", "c2"}) {
    put(std::string("hub/models--a--b/snapshots/") + commit + "/config.json", R"({"model_type": "gpt_oss"})");
    put(std::string("hub/models--a--b/snapshots/") + commit + "/model.safetensors");
  }
  put("hub/models--a--b/refs/v1", "c1"), put("hub/models--a--b/refs/v2", "c2");
  const std::string several = "hub/models--o--n/";
  put(several + "refs/main", "c2"), put(several + "refs/c1", "c1"), put(several + "refs/c2", "c2");
  gguf(several + "snapshots/c1/m-Q8_0.gguf", "gpt-oss"),
      gguf(several + "snapshots/c2/m-Q4_K_M.gguf", "gpt-oss");
  put(several + "snapshots/c0/m-F16-00001-of-00002.gguf");
  gguf("hub/models--p--q/snapshots/c1/m-Q8_0.gguf", "gpt-oss"), put("hub/models--p--q/refs/main", "gone");
  gguf("hub/models--r--s/snapshots/c1/m-Q8_0.gguf", "gpt-oss"), put("hub/models--r--s/refs/main", "c2");
  put("hub/models--r--s/snapshots/c2/README.md");
  const std::string split = "hub/models--t--u/snapshots/";
  put("hub/models--t--u/refs/main", "c2"), put(split + "c2/m-F16-00001-of-00002.gguf");
  for (const char* part : {"c1/m-F16-00001-of-00002.gguf", "c1/m-F16-00002-of-00002.gguf"})
    gguf(split + part, "gpt-oss");
  std::vector<std::string> names;
  for (const FoundModel& model : models_here(places())) {
    if (model.complete) {
      EXPECT_EQ(found(model.name), model.path) << model.name;
    }
    names.push_back(model.name + (model.complete ? "" : " in part"));
  }
  EXPECT_EQ(names, (Names{"a/b@v1", "a/b@v2", "o/n:Q4_K_M", "o/n:Q8_0", "p/q:Q8_0", "r/s:Q8_0", "t/u:F16",
                          "t/u@main in part"}));
}

// Files that the index names, and a part: they are listed as incomplete.
TEST_F(Stores, WhatIsIncompleteIsListedAsSuch) {
  put("models/m/config.json", "{}"), put("models/m/model-00001-of-00002.safetensors");
  const std::vector<FoundModel> models = models_here(places());
  ASSERT_EQ(models.size(), 1u);
  EXPECT_FALSE(models[0].complete);
}

// Each listed name opens its own model, however many a repository has and wherever they stand in it.
TEST_F(Stores, EveryListedNameOpensItsModel) {
  const std::string config = R"({"model_type": "gpt_oss"})";
  for (const char* folder : {"p/two/4bit", "p/two/8bit", "p/one/sub", "p/top", "p/mixed/bf16"}) {
    put(std::string("lms/models/") + folder + "/config.json", config);
    put(std::string("lms/models/") + folder + "/model.safetensors");
  }
  gguf("lms/models/p/top/m-Q8_0.gguf", "gpt-oss"), gguf("lms/models/p/mixed/m-Q8_0.gguf", "gpt-oss");
  std::vector<std::string> names;
  for (const FoundModel& model : models_here(places())) {
    EXPECT_EQ(found(model.name), model.path) << model.name;
    if (model.place == "LM Studio") names.push_back(model.name);
  }
  EXPECT_EQ(names.size(), 7u);
  EXPECT_NE(std::ranges::find(names, "p/one"), names.end());
  EXPECT_NE(std::ranges::find(names, "p/top:Q8_0"), names.end());
}

}  // namespace
}  // namespace moesaic
