// Conversations that outlive their model: OpenOptions::kv_host and kv_disk, over models/tiny.
#include <filesystem>
#include <fstream>
#include <set>

#include "api/embedding_test.h"
#include "base/temporary_folder.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

using OutlivingKv = Embedding;
INSTANTIATE_TEST_SUITE_P(Devices, OutlivingKv, testing::Values("cpu", "reference"),
                         [](const auto& i) { return std::string(i.param); });

OpenOptions kept_in(const std::string& folder) {
  OpenOptions options;
  options.kv_disk = folder + ":0.1";
  return options;
}

TEST_P(OutlivingKv, AConversationGoesOnAfterARestart) {
  const TemporaryFolder folder;
  const int whole = slow() ? 32 : 192;
  const std::vector<int32_t> prompt = tokens_of(whole + 8);
  std::vector<int32_t> text = prompt;
  {
    Model model = open(kept_in(folder.path()));
    const Record first = run(model, greedy(prompt, 12));
    text.insert(text.end(), first.tokens.begin(), first.tokens.end());
  }
  text.insert(text.end(), 9, 7);
  Model plain = open();
  const std::vector<int32_t> expected = run(plain, greedy(text, 8)).tokens;
  Model model = open(kept_in(folder.path()));
  const Record next = run(model, greedy(text, 8));
  EXPECT_EQ(next.tokens, expected);
  EXPECT_EQ(next.end.cached_tokens, whole);
  EXPECT_EQ(model.stats().store.fetched_tokens, static_cast<uint64_t>(whole));
  EXPECT_EQ(model.stats().store.disk.damaged, 0u);
}

TEST_P(OutlivingKv, OfRanksIsFoundByAsManyRanks) {
  const TemporaryFolder folder;
  const int whole = slow() ? 32 : 96;
  const GenerationRequest request = greedy(tokens_of(whole + 4), 4);
  OpenOptions ranks = kept_in(folder.path());
  ranks.tp = 2, ranks.threads = 2;
  std::vector<int32_t> expected;
  {
    Model model = open(ranks);
    expected = run(model, request).tokens;
  }
  {
    Model model = open(kept_in(folder.path()));
    EXPECT_EQ(run(model, request).end.cached_tokens, 0);
  }
  Model model = open(ranks);
  const Record again = run(model, request);
  EXPECT_EQ(again.end.cached_tokens, whole);
  EXPECT_EQ(again.tokens, expected);
  EXPECT_EQ(model.stats().store.disk.damaged, 0u);
}

// Weights in other formats have other K and V, as have the kernels of batch_invariant, and another drafter
// has not.
TEST_P(OutlivingKv, OnlyTheSameModelFindsIt) {
  const TemporaryFolder folder;
  const int whole = slow() ? 32 : 96;
  const GenerationRequest request = greedy(tokens_of(whole + 4), 4);
  std::vector<int32_t> expected;
  {
    Model model = open(kept_in(folder.path()));
    expected = run(model, request).tokens;
  }
  OpenOptions other = kept_in(folder.path());
  other.dense = "q8_0";
  {
    Model model = open(other);
    EXPECT_EQ(run(model, request).end.cached_tokens, 0);
  }
  other = kept_in(folder.path()), other.batch_invariant = true;
  for (const int found : {0, whole}) {
    Model model = open(other);
    EXPECT_EQ(run(model, request).end.cached_tokens, found);
  }
  OpenOptions drafting = kept_in(folder.path());
  drafting.speculative = std::string("eagle3:") + kTiny + "-eagle3", drafting.draft_tokens = 3;
  Model model = open(drafting);
  const Record again = run(model, request);
  EXPECT_EQ(again.end.cached_tokens, whole);
  EXPECT_EQ(again.tokens, expected);
}

TEST(KvOptions, AFailedOpenLeavesTheFolderAsItIs) {
  const TemporaryFolder folder;
  const auto files = [&] {
    std::set<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(folder.path())) names.insert(entry.path());
    return names;
  };
  const auto open = [&](const std::string& model, const std::string& place, bool prefix_cache = true) {
    return Model::open(model, {.device = "cpu",
                               .threads = 1,
                               .context = 256,
                               .prefix_cache = prefix_cache,
                               .kv_disk = folder.path() + place});
  };
  for (const char* place : {"", "/new", "/new:0.000001"}) {
    EXPECT_FALSE(open("/nowhere", place).ok());
    EXPECT_FALSE(open(kTiny, place, false).ok());
    EXPECT_TRUE(files().empty()) << place;
  }
  {
    Model model = open(kTiny, ":0.1").value();
    run(model, greedy(tokens_of(200), 4));
  }
  const std::set<std::string> kept = files();
  EXPECT_GE(kept.size(), 7u);
  EXPECT_FALSE(open("/nowhere", ":0.000001").ok());
  EXPECT_FALSE(open(kTiny, ":0.000001", false).ok());
  EXPECT_NE(open(kTiny, ":0.000001").status().message().find("too few"), std::string::npos);
  EXPECT_EQ(files(), kept);
  // Too little for all: they go when the model is open.
  EXPECT_TRUE(open(kTiny, ":0.0001").ok());
  EXPECT_LT(files().size(), kept.size());
}

TEST(KvOptions, AreRefusedInOneLine) {
  const TemporaryFolder folder;
  const auto refusal = [&](OpenOptions options) {
    options.device = "cpu", options.context = 256;
    return Model::open(kTiny, options).status().message();
  };
  EXPECT_NE(refusal({.kv_host = -1}).find("options.kv_host"), std::string::npos);
  EXPECT_NE(refusal({.kv_host = 1e6}).find("options.kv_host"), std::string::npos);
  for (const char* size : {":0", ":", ":10GB", ":-1", ":nan", ":1e300"})
    EXPECT_NE(refusal({.kv_disk = folder.path() + size}).find("options.kv_disk"), std::string::npos) << size;
  EXPECT_EQ(refusal({.kv_disk = folder.path() + ":/"}).find("No such file"), std::string::npos);
  EXPECT_NE(refusal({.kv_disk = folder.path() + "/a/b"}).find("No such file"), std::string::npos);
  EXPECT_NE(refusal({.prefix_cache = false, .kv_host = 0.1}).find("prefix cache"), std::string::npos);
  std::ofstream(folder.path() + "/file") << "x";
  EXPECT_NE(refusal({.kv_disk = folder.path() + "/file"}).find("options.kv_disk"), std::string::npos);
  OpenOptions options = kept_in(folder.path());
  options.device = "cpu", options.context = 256;
  const auto first = Model::open(kTiny, options);
  ASSERT_TRUE(first.ok());
  EXPECT_NE(refusal(kept_in(folder.path())).find("another model or process"), std::string::npos);
}

}  // namespace
}  // namespace moesaic
