// Several ranks give the same bits as one: logits, chunk by chunk, with pages that are read and put back.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <thread>

#include "backend/backend.h"
#include "base/error.h"
#include "base/two_nodes.h"
#include "core/rank_share.h"
#include "model/forward.h"
#include "model/random_model.h"
#include "model/small_config_test.h"

namespace moesaic {
namespace {

ModelConfig config_of(int kv_heads) {
  ModelConfig config = small_config(2);
  config.hidden = 288, config.intermediate = 352;  // nine and eleven units of 32: the shares differ
  config.heads = 2 * kv_heads, config.kv_heads = kv_heads;
  config.vocab = 301;
  return config;
}

struct Setting {
  std::string device;
  std::vector<int> ranks;
  Format experts = Format::kMxfp4;
  std::optional<Format> dense = {};
  MoePath path = MoePath::kAuto;
  KvFormat kv = KvFormat::kOwn;
};

BackendOptions options_of(const Setting& s, int ranks) {
  return {.tp = ranks, .threads = 2, .dense = s.dense, .moe_path = s.path, .kv = s.kv, .max_rows = 64};
}

Batch chunk(int first, int rows, std::span<const int32_t> tokens) {
  Batch batch;
  Sequence sequence{.first_row = 0, .rows = rows, .context = first + rows, .full_pages = {3, 0, 4, 1, 2}};
  sequence.window_pages = sequence.full_pages;
  batch.sequences = {sequence};
  for (int i = first; i < first + rows; ++i) {
    batch.tokens.push_back(tokens[static_cast<size_t>(i)]), batch.positions.push_back(i);
    if (i % 3 == 0) batch.logit_rows.push_back(i - first);
  }
  return batch;
}

// The logits of steps with 1 to 20 rows. Between two of them every page goes out and into a second backend.
std::vector<float> logits_of(const ModelConfig& config, const ModelWeights& weights,
                             const BackendOptions& options, const std::string& device) {
  std::unique_ptr<Backend> backends[2];
  for (auto& backend : backends) {
    backend = create_backend(device, options).value();
    EXPECT_EQ(backend->load(config, weights, {}).message(), "");
    EXPECT_EQ(backend->alloc_kv({.full_pages = 5, .window_pages = 5}).message(), "");
  }
  std::vector<int32_t> tokens(44);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 37 % 301);
  std::vector<float> all;
  int done = 0;
  for (const int rows : {20, 1, 2, 1, 20}) {
    if (done == 23) {
      std::vector<std::byte> page(backends[0]->kv_page_bytes());
      for (int layer = 0; layer < config.layers; ++layer)
        for (int32_t p = 0; p < 5; ++p) {
          EXPECT_TRUE(backends[0]->read_kv_page(layer, p, page).ok());
          EXPECT_TRUE(backends[1]->write_kv_page(layer, p, page).ok());
        }
      std::swap(backends[0], backends[1]);
    }
    const Batch batch = chunk(done, rows, tokens);
    std::vector<float> logits(batch.logit_rows.size() * static_cast<size_t>(config.vocab), NAN);
    EXPECT_EQ(forward(*backends[0], config, batch, logits).message(), "");
    all.insert(all.end(), logits.begin(), logits.end());
    done += rows;
  }
  return all;
}

void expect_same_bits(const Setting& s) {
  const ModelConfig config = config_of(8);
  const ModelWeights weights = make_random_model(config, {.experts = s.experts});
  const std::vector<float> one = logits_of(config, weights, options_of(s, 1), s.device);
  for (const int ranks : s.ranks)
    EXPECT_EQ(logits_of(config, weights, options_of(s, ranks), s.device), one) << s.device << " " << ranks;
}

TEST(Ranks, SameBitsAsOne) {
  for (const char* device : {"cpu", "reference"}) expect_same_bits({.device = device, .ranks = {2, 3, 4, 8}});
}

TEST(Ranks, SameBitsInEveryFormat) {
  for (const Format experts : {Format::kMxfp4Gguf, Format::kBF16})
    expect_same_bits({.device = "cpu", .ranks = {3}, .experts = experts});
  for (const Format dense : {Format::kQ8_0, Format::kMxfp8})
    expect_same_bits({.device = "cpu", .ranks = {3}, .dense = dense, .path = MoePath::kW4A8});
  expect_same_bits({.device = "reference", .ranks = {3}, .path = MoePath::kW4A8, .kv = KvFormat::kFp8});
}

TEST(Ranks, SharesTileTheWhole) {
  for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
    for (const int64_t total : {301, 2880, 201088, 257}) {
      int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Range part = RankShare{rank, ranks}.rows(total);
        EXPECT_EQ(part.first, next);
        EXPECT_GT(part.count, 0);
        EXPECT_TRUE(part.first % 32 == 0);
        next += part.count;
      }
      EXPECT_EQ(next, total);
    }
  }
}

// K and V of all heads once, however many ranks there are; the weights too, but for what every rank has.
TEST(Ranks, MemoryIsShared) {
  const ModelConfig config = config_of(8);
  const ModelWeights weights = make_random_model(config, {});
  const KvLayout layout{.full_pages = 5, .window_pages = 5};
  const auto one = create_backend("cpu", {.threads = 1}).value();
  const auto four = create_backend("cpu", {.tp = 4, .threads = 4}).value();
  EXPECT_EQ(one->kv_token_bytes(config), four->kv_token_bytes(config));
  const auto part = [&](Backend& backend, std::string_view name) {
    for (const MemoryPart& p : backend.memory(config, weights, layout))
      if (p.name == name) return p.bytes;
    return 0.0;
  };
  for (const char* name : {kExpertsPart, kProjectionsPart, kHeadPart, kCachePart})
    EXPECT_EQ(part(*one, name), part(*four, name)) << name;
  EXPECT_EQ(4 * part(*one, kEmbeddingPart), part(*four, kEmbeddingPart));
}

TEST(Ranks, WhatCannotBeCutIsRefused) {
  const auto refusal = [](const ModelConfig& config, int ranks, bool adapter = false) {
    ModelWeights weights = make_random_model(config, {});
    if (adapter) weights.adapters.resize(static_cast<size_t>(config.layers));
    return create_backend("cpu", {.tp = ranks, .threads = 1}).value()->load(config, weights, {}).message();
  };
  EXPECT_NE(refusal(config_of(2), 3).find("--tp 3: the model has 2 KV heads"), std::string::npos);
  ModelConfig narrow = config_of(8);
  narrow.hidden = 96;
  EXPECT_NE(refusal(narrow, 4).find("--tp 4: a matrix of 96 rows"), std::string::npos);
  EXPECT_NE(refusal(config_of(8), 2, true).find("LoRA"), std::string::npos);
  EXPECT_FALSE(create_backend("cpu", {.tp = kMostRanks + 1}).ok());
  EXPECT_EQ(create_backend("cpu", {.tp = 2}).value()->draft_head(), nullptr);
}

// A fault of the numbers ends one step, on every rank, and the next one is right.
TEST(Ranks, AStepThatFailsIsTheOnlyOne) {
  const ModelConfig config = config_of(8);
  const ModelWeights weights = make_random_model(config, {});
  for (const char* device : {"cpu", "reference"}) {
    const auto backend = create_backend(device, {.tp = 3, .threads = 1, .max_rows = 64}).value();
    ASSERT_TRUE(backend->load(config, weights, {}).ok());
    ASSERT_TRUE(backend->alloc_kv({.full_pages = 5, .window_pages = 5}).ok());
    const std::vector<int32_t> tokens(4, 7), wrong(4, config.vocab);
    const auto step = [&](std::span<const int32_t> of) {
      std::vector<float> logits(static_cast<size_t>(2 * config.vocab));
      return forward(*backend, config, chunk(0, 4, of), logits);
    };
    EXPECT_TRUE(step(tokens).ok());
    EXPECT_FALSE(step(wrong).ok());
    EXPECT_TRUE(step(tokens).ok());
  }
}

TEST(Ranks, LoadingReportsToItsCaller) {
  const ModelConfig config = config_of(8);
  const ModelWeights weights = make_random_model(config, {});
  const auto backend = create_backend("cpu", {.tp = 2, .threads = 1}).value();
  const auto caller = std::this_thread::get_id();
  int calls = 0;
  const auto counts = [&](int done, int total) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_LE(done, total);
    return ++calls > 0;
  };
  EXPECT_TRUE(backend->load(config, weights, counts).ok());
  EXPECT_GT(calls, 0);
  EXPECT_EQ(backend->load(config, weights, [](int, int) { return false; }).code(), StatusCode::kCancelled);
  ModelWeights damaged = weights;
  damaged.layers[1].o = {};
  EXPECT_NE(backend->load(config, damaged, {}).message().find("missing"), std::string::npos);
}

// Threads of this process that may run on this CPU alone.
int threads_on(int cpu) {
  int count = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(thread.path() / "status");
    for (std::string line; std::getline(status, line);)
      count += line == fmt::format("Cpus_allowed_list:\t{}", cpu) ? 1 : 0;
  }
  return count;
}

// A rank on each NUMA node, all of whose threads stay there.
TEST(Ranks, OneForEachNumaNode) {
  if (!TwoNodes::usable()) GTEST_SKIP() << "CPUs 0 and 1 are not both usable";
  const TwoNodes nodes;
  const ModelConfig config = config_of(8);
  const ModelWeights weights = make_random_model(config, {});
  const BackendOptions options{
      .tp = 2, .rank_per_node = true, .threads = 4, .system_root = nodes.root(), .max_rows = 64};
  const int before[2] = {threads_on(0), threads_on(1)};
  const auto backend = create_backend("cpu", options).value();
  EXPECT_EQ(backend->load(config, weights, {}).message(), "");
  EXPECT_EQ(backend->caps().threads, 4);
  for (const int cpu : {0, 1}) EXPECT_EQ(threads_on(cpu) - before[cpu], 2) << cpu;
  EXPECT_EQ(logits_of(config, weights, options, "cpu"),
            logits_of(config, weights, {.threads = 1, .max_rows = 64}, "cpu"));
}

TEST(Ranks, NumaNodesAreTheCpus) {
  const TwoNodes nodes;
  const auto refusal = [&](const char* device, int tp, const std::string& root) {
    return create_backend(device, {.tp = tp, .rank_per_node = true, .threads = 4, .system_root = root})
        .status()
        .message();
  };
  EXPECT_NE(refusal("reference", 2, nodes.root()).find("--tp numa: 2 ranks on device reference"),
            std::string::npos);
  EXPECT_NE(refusal("cpu", 3, nodes.root()).find("--tp numa: 3 ranks on device cpu"), std::string::npos);
}

}  // namespace
}  // namespace moesaic
