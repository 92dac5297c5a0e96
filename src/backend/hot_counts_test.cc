#include "backend/hot_counts.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/file_cache.h"
#include "base/temporary_folder.h"

namespace moesaic {
namespace {

constexpr int kExperts = 3;
using Counts = std::vector<uint32_t>;

struct Router {
  std::vector<float> values = std::vector<float>(kExperts * 32, 0.5f), bias = {1, 2, 3};
  ModelWeights weights() const {
    const auto view = [](const std::vector<float>& v, int64_t rows) {
      return dense_view(Format::kF32, rows, std::ssize(v) / rows,
                        reinterpret_cast<const std::byte*>(v.data()));
    };
    return {.layers = {{.router = view(values, kExperts), .router_bias = view(bias, 1)}}};
  }
};

TEST(HotCounts, AreThereInTheNextRun) {
  const TemporaryFolder folder;
  ExpertUse first(2, kExperts), second(2, kExperts);
  first.count(0, std::vector<int32_t>{2, 2, 0}), first.count(1, std::vector<int32_t>{1});
  EXPECT_FALSE(read_hot_counts(folder.path(), "a model", second));
  ASSERT_EQ(write_hot_counts(folder.path(), "a model", first).message(), "");
  EXPECT_FALSE(read_hot_counts(folder.path(), "another model", second));
  EXPECT_EQ(second.counts(), Counts(6));
  EXPECT_TRUE(read_hot_counts(folder.path(), "a model", second));
  EXPECT_EQ(second.counts(), (Counts{1, 0, 2, 0, 1, 0}));
  EXPECT_EQ(second.counted(), 0u);
}

// Another --gpu-memory leaves another number of the last layers to the host.
TEST(HotCounts, AreMatchedFromTheLastLayerOn) {
  const TemporaryFolder folder;
  ExpertUse two(2, kExperts), one(1, kExperts), three(3, kExperts);
  two.begin_with(Counts{1, 2, 3, 4, 5, 6});
  ASSERT_TRUE(write_hot_counts(folder.path(), "k", two).ok());
  EXPECT_TRUE(read_hot_counts(folder.path(), "k", one));
  EXPECT_EQ(one.counts(), (Counts{4, 5, 6}));
  EXPECT_TRUE(read_hot_counts(folder.path(), "k", three));
  EXPECT_EQ(three.counts(), (Counts{0, 0, 0, 1, 2, 3, 4, 5, 6}));
}

TEST(HotCounts, DamagedOrForeignOnesAreIgnored) {
  const TemporaryFolder folder;
  ExpertUse use(1, kExperts);
  use.begin_with(Counts{7, 8, 9});
  ASSERT_TRUE(write_hot_counts(folder.path(), "k", use).ok());
  const std::string path = FileCache(folder.path()).path_of("k");
  const auto size = static_cast<std::streamoff>(std::filesystem::file_size(path));
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(size - 2).put('x');
  ExpertUse fresh(1, kExperts);
  EXPECT_FALSE(read_hot_counts(folder.path(), "k", fresh));
  for (const std::string& foreign : {std::string(), std::string("1234567"), std::string(12, '\xFF')}) {
    ASSERT_TRUE(FileCache(folder.path()).put("k", foreign).ok());
    EXPECT_FALSE(read_hot_counts(folder.path(), "k", fresh)) << foreign.size();
  }
  EXPECT_EQ(fresh.counts(), Counts(kExperts));
  EXPECT_FALSE(read_hot_counts("", "k", fresh));
}

TEST(HotCounts, NothingIsKeptOfNothing) {
  const TemporaryFolder folder;
  ASSERT_TRUE(write_hot_counts(folder.path(), "k", ExpertUse(1, kExperts)).ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  ExpertUse use(1, kExperts);
  use.begin_with(Counts{1, 0, 0});
  EXPECT_TRUE(write_hot_counts("", "k", use).ok());
}

TEST(HotCounts, TheKeyIsTheRouters) {
  const ModelConfig config{.layers = 1, .hidden = 32, .experts = kExperts, .experts_per_token = 2};
  ModelConfig wider = config;
  wider.experts_per_token = 3;
  Router a, b;
  b.bias[1] = 4;
  const std::string key = hot_counts_key(config, a.weights());
  EXPECT_EQ(key, hot_counts_key(config, Router().weights()));
  EXPECT_NE(key, hot_counts_key(config, b.weights()));
  EXPECT_NE(key, hot_counts_key(wider, a.weights()));
}

}  // namespace
}  // namespace moesaic
