// Tests which files of a repository are taken.
#include "hub/choose_files.h"

#include <gtest/gtest.h>

namespace moesaic::hub {
namespace {

Listing listing_of(const std::vector<std::string>& paths) {
  Listing listing{.repository = "o/n"};
  for (const std::string& path : paths) listing.files.push_back({.path = path, .size = 1500000000});
  return listing;
}

// The paths, or the message.
std::vector<std::string> chosen(const std::vector<std::string>& paths, const RepositoryName& name = {},
                                bool usual = false) {
  const Result<Choice> choice = choose_files(listing_of(paths), name, usual);
  if (!choice.ok()) return {choice.status().message()};
  std::vector<std::string> out;
  for (const RemoteFile& file : choice->files) out.push_back(file.path);
  return out;
}
using Paths = std::vector<std::string>;

TEST(ChooseFiles, TheTopOfAFolderOfSafetensors) {
  const Paths top = {"config.json",
                     "model-00001-of-00002.safetensors",
                     "model.safetensors.index.json",
                     "tokenizer.json",
                     "chat_template.jinja",
                     "LICENSE"};
  Paths all = top;
  for (const char* other :
       {"original/model.safetensors", "metal/model.bin", "pytorch_model.bin", "x.PNG", "m.gguf"})
    all.emplace_back(other);
  EXPECT_EQ(chosen(all), top);
  EXPECT_EQ(chosen(all, {.file = "m.gguf"}), Paths{"m.gguf"});
}

TEST(ChooseFiles, NothingButOriginal) {
  EXPECT_EQ(chosen({"README.md", "original/config.json", "original/model.safetensors", "metal/model.bin"}),
            (Paths{"README.md", "original/config.json", "original/model.safetensors"}));
}

TEST(ChooseFiles, OneOfSeveralGgufs) {
  const Paths all = {"config.json", "m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-F16.gguf", "mmproj-F16.gguf"};
  EXPECT_EQ(chosen(all, {.tag = "f16"}), Paths{"m-F16.gguf"});
  EXPECT_EQ(chosen(all),
            Paths{"o/n: 3 models; put one of these behind the name: :F16 (1.5 GB), :Q4_K_M (1.5 GB), "
                  ":Q8_0 (1.5 GB)"});
  EXPECT_EQ(chosen(all, {}, true), Paths{"m-Q4_K_M.gguf"});
  EXPECT_EQ(chosen({"m-Q8_0.gguf", "m-F16.gguf"}, {}, true), Paths{"m-Q8_0.gguf"});
  EXPECT_EQ(chosen({"m-F32.gguf", "m-F16.gguf"}, {}, true).front().find("o/n: 2 models"), 0U);
  EXPECT_EQ(chosen({"m-mxfp4.gguf"}), Paths{"m-mxfp4.gguf"});
}

TEST(ChooseFiles, AHeadBesideTheModelByItsFileAlone) {
  const Paths all = {"gpt-oss-20b-MXFP4.gguf", "eagle3-gpt-oss-20b-BF16.gguf",
                     "eagle3-gpt-oss-20b-Q8_0.gguf"};
  EXPECT_EQ(chosen(all), Paths{all[0]});
  EXPECT_EQ(chosen(all, {}, true), Paths{all[0]});
  EXPECT_EQ(chosen(all, {.tag = "Q8_0"}),
            Paths{"o/n has no Q8_0; o/n: 1 models; put one of these behind the name: :MXFP4 (1.5 GB)"});
  EXPECT_EQ(chosen(all, {.file = all[2]}), Paths{all[2]});
}

TEST(ChooseFiles, AllPartsOfASplitOne) {
  const Paths parts = {"Q8_0/m-Q8_0-00001-of-00002.gguf", "Q8_0/m-Q8_0-00002-of-00002.gguf"};
  EXPECT_EQ(chosen(parts), parts);
  EXPECT_EQ(chosen(parts, {.file = parts[1]}), parts);
  EXPECT_EQ(chosen({parts[1]}), Paths{"o/n: it has no file " + parts[0]});
}

TEST(ChooseFiles, AnAdapter) {
  const Paths adapter = {"adapter_config.json", "adapter_model.safetensors", "README.md"};
  EXPECT_EQ(chosen(adapter), adapter);
}

}  // namespace
}  // namespace moesaic::hub
