// Promises that every backend keeps beyond numbers: sequences of a batch do not disturb each other, page
// tables are followed wherever they point, bad input and bad weights end in one line.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>

#include "base/cpu_topology.h"
#include "model/forward.h"
#include "model/overflowing_values_test.h"
#include "model/random_model.h"
#include "model_golden.h"
#include "mx/formats.h"

namespace moesaic {
namespace {

class BackendTest : public ::testing::TestWithParam<const char*> {
 protected:
  Golden golden_ = load_golden("h96-e5");
  const ModelConfig& config_ = golden_.config;
  ModelWeights weights_ = make_random_model(config_, {.seed = golden_.seed});

  std::vector<float> step(Backend& backend, const Batch& batch) {
    std::vector<float> logits(batch.logit_rows.size() * static_cast<size_t>(config_.vocab), NAN);
    const Status status = forward(backend, config_, batch, logits);
    EXPECT_TRUE(status.ok()) << status.message();
    return logits;
  }
  // A step of one token, token 1.
  void expect_failure_in_layer_0(const ModelWeights& w);
};

INSTANTIATE_TEST_SUITE_P(Devices, BackendTest, ::testing::ValuesIn(devices()));

// A sequence on its way through the batches, with the pages that it owns.
struct TestSequence {
  std::span<const int32_t> tokens;
  std::vector<int32_t> pages;  // in both pools
  int done = 0;

  // Appends the next rows to the batch.
  void add(Batch& batch, int rows) {
    Sequence s{.first_row = batch.rows(),
               .rows = rows,
               .context = done + rows,
               .full_pages = pages,
               .window_pages = pages};
    for (int page = 0; (page + 1) * kPageTokens <= done - 127; ++page)
      s.window_pages[static_cast<size_t>(page)] = -1;
    for (int i = 0; i < rows; ++i) {
      batch.tokens.push_back(tokens[static_cast<size_t>(done + i)]);
      batch.positions.push_back(done + i);
      batch.logit_rows.push_back(batch.rows() - 1);
    }
    batch.sequences.push_back(std::move(s));
    done += rows;
  }
};

void BackendTest::expect_failure_in_layer_0(const ModelWeights& w) {
  const auto backend = load_backend(GetParam(), config_, w);
  ASSERT_TRUE(backend->alloc_kv({.page_tokens = kPageTokens, .full_pages = 1, .window_pages = 1}).ok());
  std::vector<float> logits(static_cast<size_t>(config_.vocab));
  const std::vector<int32_t> tokens = {1};
  TestSequence sequence{tokens, {0}};
  Batch batch;
  sequence.add(batch, 1);
  const Status status = forward(*backend, config_, batch, logits);
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_NE(status.message().find("layer 0"), std::string::npos) << status.message();
}

// Three sequences with interleaved pages, decoding, prefilling and idle in turn, against each one alone.
TEST_P(BackendTest, SequencesOfABatchAreIndependent) {
  const auto backend = load_backend(GetParam(), config_, weights_);
  ASSERT_TRUE(backend->alloc_kv({.page_tokens = kPageTokens, .full_pages = 20, .window_pages = 20}).ok());
  const auto vocab = static_cast<size_t>(config_.vocab);
  const std::span<const int32_t> all(golden_.tokens);
  TestSequence sequences[] = {{all.subspan(0, 180), {19, 3, 7, 1, 12, 0}},
                              {all.subspan(200, 40), {4, 18}},
                              {all.subspan(300, 150), {2, 9, 8, 17, 5}}};
  std::vector<float> got[3];
  for (int turn = 0; sequences[0].done < 180 || sequences[1].done < 40 || sequences[2].done < 150; ++turn) {
    Batch batch;
    std::vector<int> owner;  // [row]
    for (int s = 0; s < 3; ++s) {
      const int left = static_cast<int>(sequences[s].tokens.size()) - sequences[s].done;
      const int rows = std::min(left, (turn + s) % 3 == 0 ? 1 : 5 * ((turn + s) % 4));
      if (rows == 0) continue;
      sequences[s].add(batch, rows);
      owner.insert(owner.end(), static_cast<size_t>(rows), s);
    }
    if (batch.tokens.empty()) continue;
    const std::vector<float> logits = step(*backend, batch);
    for (size_t row = 0; row < owner.size(); ++row)
      got[owner[row]].insert(got[owner[row]].end(), logits.begin() + static_cast<std::ptrdiff_t>(row * vocab),
                             logits.begin() + static_cast<std::ptrdiff_t>((row + 1) * vocab));
  }
  for (int s = 0; s < 3; ++s) {
    const std::vector<float> alone = run_sequence(*backend, config_, sequences[s].tokens, 512, true);
    // On a device a single row's attention is summed in another order than a prefill's.
    if (backend->caps().half_activations)
      EXPECT_LT(distance(got[s], alone).rms, 5e-3) << s;
    else
      EXPECT_EQ(got[s], alone) << s;
  }
}

// Pages of one sequence go to other pages and back again and again, while another sequence decodes.
TEST_P(BackendTest, PagesAreCopiedBesideSteps) {
  const auto backend = load_backend(GetParam(), config_, weights_);
  ASSERT_TRUE(backend->alloc_kv({.page_tokens = kPageTokens, .full_pages = 16, .window_pages = 16}).ok());
  const std::span<const int32_t> all(golden_.tokens);
  TestSequence still{all.subspan(0, 4 * kPageTokens + 1), {0, 1, 2, 3, 4}},
      decoding{all.subspan(200, 60), {5, 6}};
  Batch batch;
  still.add(batch, 4 * kPageTokens);
  decoding.add(batch, 10);
  step(*backend, batch);
  std::vector<int> kinds[2];  // layers with full attention, and those with a window
  for (int layer = 0; layer < config_.layers; ++layer)
    kinds[config_.sliding[static_cast<size_t>(layer)] ? 1 : 0].push_back(layer);
  std::atomic<bool> over = false;
  int copies = 0;
  std::jthread copying([&] {
    const auto copier = backend->kv_copier();
    ASSERT_NE(copier, nullptr);
    for (; copies < 2 || !over; ++copies) {
      for (int32_t page = 0; page < 4; ++page) {
        for (const std::vector<int>& layers : kinds) {
          std::vector<std::byte> bytes(layers.size() * backend->kv_page_bytes()), again = bytes;
          const bool back = copies % 2 == 1;
          ASSERT_TRUE(copier->read(layers, back ? 10 + page : page, bytes).ok());
          ASSERT_TRUE(copier->write(layers, back ? page : 10 + page, bytes).ok());
          ASSERT_TRUE(copier->read(layers, back ? page : 10 + page, again).ok());
          EXPECT_EQ(again, bytes);
        }
      }
    }
  });
  std::vector<std::vector<float>> decoded;
  while (decoding.done < 60) {
    Batch next;
    decoding.add(next, 1);
    decoded.push_back(step(*backend, next));
  }
  over = true;
  copying.join();
  const auto last_row = [&](std::vector<int32_t> pages) {
    TestSequence sequence = still;
    sequence.pages = std::move(pages);
    Batch next;
    sequence.add(next, 1);
    return step(*backend, next);
  };
  const std::vector<float> want = last_row({0, 1, 2, 3, 4});
  EXPECT_EQ(last_row({10, 11, 12, 13, 4}), want);
  TestSequence alone{all.subspan(200, 60), {14, 15}};
  Batch prompt;
  alone.add(prompt, 10);
  step(*backend, prompt);
  for (const std::vector<float>& row : decoded) {
    Batch next;
    alone.add(next, 1);
    EXPECT_EQ(step(*backend, next), row);
  }
}

// A decoding row beside others, which decode and prefill at other depths, against the same row alone and
// against the prefill that has it: the same bits.
TEST_P(BackendTest, ABatchChangesNoBit) {
  auto created = create_backend(GetParam(), {.threads = 2, .max_rows = 1024, .batch_invariant = true});
  ASSERT_TRUE(created.ok()) << created.status().message();
  Backend& backend = *created.value();
  ASSERT_TRUE(backend.load(config_, weights_, {}).ok());
  const std::span<const int32_t> all(golden_.tokens);
  constexpr int kDepth = 150, kOthers = 127, kOtherPages = 2;
  const std::vector<float> want = run_sequence(backend, config_, all.first(kDepth + 1), 512);
  constexpr int kPages = 5 + kOthers * kOtherPages;
  ASSERT_TRUE(
      backend.alloc_kv({.page_tokens = kPageTokens, .full_pages = kPages, .window_pages = kPages}).ok());
  TestSequence first{all.first(kDepth + 1), {0, 1, 2, 3, 4}};
  std::vector<TestSequence> others;
  Batch start;
  first.add(start, kDepth);
  for (int i = 0; i < kOthers; ++i) {
    const int32_t page = 5 + i * kOtherPages;
    others.push_back({all.subspan(static_cast<size_t>(i), 64), {page, page + 1}});
    others.back().add(start, 1 + i % 5);
  }
  step(backend, start);
  const auto vocab = static_cast<size_t>(config_.vocab);
  for (const int size : {1, 2, 3, 8, 9, 16, 17, 33, 64, 65, 128}) {
    Batch batch;
    TestSequence again = first;
    again.add(batch, 1);
    for (int i = 0; i < size - 1; ++i) {
      TestSequence other = others[static_cast<size_t>(i)];
      other.add(batch, size % 2 == 1 && i % 7 == 0 ? 3 : 1);
    }
    std::vector<float> got = step(backend, batch);
    got.resize(vocab);
    EXPECT_EQ(got, want) << "batch of " << size;
  }
}

TEST_P(BackendTest, ThreadsDoNotChangeTheLogits) {
  std::vector<float> want;
  for (const int threads : {1, 2, 5}) {
    auto backend = create_backend(GetParam(), {.threads = threads});
    ASSERT_TRUE(backend.ok());
    ASSERT_TRUE(backend.value()->load(config_, weights_, {}).ok());
    const auto got = run_sequence(*backend.value(), config_, golden_.prompt(70), 33, true);
    if (want.empty()) want = got;
    EXPECT_EQ(got, want) << threads << " threads";
  }
}

// AMX in software everywhere that AVX-512 is, and in hardware where there is one: neither the rows of a step
// nor threads change the logits, whatever takes tiles and whatever vectors.
class CpuTiles : public testing::TestWithParam<std::tuple<const char*, Format>> {};
TEST_P(CpuTiles, LogitsDoNotDependOnTheStep) {
  const auto [name, dense] = GetParam();
  const Golden golden = load_golden(name);
  const ModelWeights weights = make_random_model(golden.config, {.seed = golden.seed, .dense = dense});
  const auto logits = [&](const std::string& set, int threads, int chunk) {
    auto backend = create_backend("cpu", {.threads = threads, .max_rows = 1024, .isa = set});
    EXPECT_TRUE(backend.ok() && backend.value()->load(golden.config, weights, {}).ok());
    return run_sequence(*backend.value(), golden.config, golden.prompt(180), chunk, true);
  };
  int run = 0;
  for (const std::string isa : {"amx_emulated", "amx"}) {
    if (!create_backend("cpu", {.isa = isa}).ok()) continue;
    const std::vector<float> want = logits(isa, 2, 512);
    EXPECT_LT(distance(want, logits("avx512", 2, 512)).rms, 5e-2) << isa;
    for (const int chunk : {1, 9, 33})
      EXPECT_EQ(logits(isa, 1 + chunk % 4, chunk), want) << isa << " " << chunk;
    ++run;
  }
  if (run == 0) GTEST_SKIP() << "this machine has no AVX-512 with VNNI, BF16 and VBMI";
}
INSTANTIATE_TEST_SUITE_P(Models, CpuTiles,
                         testing::Combine(testing::Values("h96-e5", "h288-e8-top2"),
                                          testing::Values(Format::kQ8_0, Format::kBF16)));

// Each CPU that this process has is a NUMA node of its own: weights lie elsewhere in memory, and other
// threads take the work, but the numbers are the same.
TEST_P(BackendTest, NumaNodesDoNotChangeTheLogits) {
  namespace fs = std::filesystem;
  const fs::path root = fs::path(testing::TempDir()) / fmt::format("moesaic_nodes_{}", getpid());
  const std::vector<int> cpus = current_affinity();
  const auto write = [&](const std::string& name, int text) {
    fs::create_directories((root / name).parent_path());
    std::ofstream(root / name) << text << "\n";
  };
  std::string online;
  for (int node = 0; node < std::ssize(cpus); ++node) {
    write(fmt::format("sys/devices/system/node/node{}/cpulist", node), cpus[static_cast<size_t>(node)]);
    online += fmt::format("{}{}", node > 0 ? "," : "", node);
  }
  std::ofstream(root / "sys/devices/system/node/online") << online;
  std::vector<float> want;
  for (const int threads : {1, 2, 3, 9}) {
    for (const bool pin : {true, false}) {
      auto backend =
          create_backend(GetParam(), {.threads = threads, .cpu_pin = pin, .system_root = root.string()});
      ASSERT_TRUE(backend.ok());
      ASSERT_TRUE(backend.value()->load(config_, weights_, {}).ok());
      const auto got = run_sequence(*backend.value(), config_, golden_.prompt(70), 33, true);
      if (want.empty()) want = got;
      EXPECT_EQ(got, want) << threads << " threads";
    }
  }
  fs::remove_all(root);
}

TEST_P(BackendTest, ABadBatchIsRefusedAndTheNextOneRuns) {
  const auto backend = load_backend(GetParam(), config_, weights_);
  ASSERT_TRUE(backend->alloc_kv({.page_tokens = kPageTokens, .full_pages = 2, .window_pages = 2}).ok());
  TestSequence sequence{golden_.tokens, {0, 1}};
  Batch good;
  sequence.add(good, 3);
  Batch bad = good;
  bad.tokens[1] = config_.vocab;
  std::vector<float> logits(3 * static_cast<size_t>(config_.vocab));
  EXPECT_EQ(forward(*backend, config_, bad, logits).code(), StatusCode::kInvalidArgument);
  const auto first = step(*backend, good);
  EXPECT_EQ(step(*backend, good), first);
}

// The residual leaves float's range in layer 0: no NaN may come out as an answer.
TEST_P(BackendTest, AnOverflowIsAnError) {
  std::vector<float> embed(static_cast<size_t>(config_.vocab) * static_cast<size_t>(config_.hidden), 0.5f);
  std::fill_n(embed.begin() + config_.hidden, config_.hidden, 3e38f);
  std::vector<float> bias(static_cast<size_t>(config_.hidden), 3e38f);
  ModelWeights w = weights_;
  w.embed =
      dense_view(Format::kF32, config_.vocab, config_.hidden, reinterpret_cast<std::byte*>(embed.data()));
  w.layers[0].o_bias = dense_view(Format::kF32, 1, config_.hidden, reinterpret_cast<std::byte*>(bias.data()));
  expect_failure_in_layer_0(w);
}

// The values of a row in the middle of a page are infinite. Another sequence gets the page next.
TEST_P(BackendTest, WhatAFaultLeavesInAPageHarmsNobody) {
  ModelWeights w = weights_;
  OverflowingValues overflowing(config_);
  overflowing.put(w);
  const std::vector<int32_t> fails = {2, 3, 4, 5, 6, 7, 8, 9, 10, OverflowingValues::kToken}, fresh = {2, 3};
  const auto run = [&](Backend& backend, const std::vector<int32_t>& tokens, std::vector<float>& logits) {
    TestSequence sequence{tokens, {0}};
    Batch batch;
    sequence.add(batch, static_cast<int>(tokens.size()));
    logits.assign(tokens.size() * static_cast<size_t>(config_.vocab), NAN);
    return forward(backend, config_, batch, logits);
  };
  const KvLayout layout{.page_tokens = kPageTokens, .full_pages = 1, .window_pages = 1};
  const auto backend = load_backend(GetParam(), config_, w), other = load_backend(GetParam(), config_, w);
  ASSERT_TRUE(backend->alloc_kv(layout).ok() && other->alloc_kv(layout).ok());
  std::vector<float> got, want;
  EXPECT_EQ(run(*backend, fails, got).code(), StatusCode::kInternal);
  ASSERT_EQ(run(*backend, fresh, got).message(), "");
  ASSERT_EQ(run(*other, fresh, want).message(), "");
  EXPECT_EQ(got, want);
}

TEST_P(BackendTest, DamagedWeightsAreRefused) {
  ModelWeights nan_norm = weights_;
  std::vector<float> norm(static_cast<size_t>(config_.hidden), 1.0f);
  norm[5] = NAN;
  nan_norm.layers[1].mlp_norm =
      dense_view(Format::kF32, 1, config_.hidden, reinterpret_cast<std::byte*>(norm.data()));
  ModelWeights nan_scale = weights_;
  const ExpertsView& down = weights_.layers[0].down;
  std::vector<std::byte> scales(down.first.scales, down.first.scales + down.count * down.scale_stride);
  scales[scales.size() / 2] = std::byte{0xFF};
  nan_scale.layers[0].down.first.scales = scales.data();
  ModelWeights missing = weights_;
  missing.layers[1].router = {};
  for (const ModelWeights* w : {&nan_norm, &nan_scale, &missing}) {
    auto backend = create_backend(GetParam(), {.threads = 2});
    ASSERT_TRUE(backend.ok());
    const Status status = backend.value()->load(config_, *w, {});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
    EXPECT_NE(status.message().find(w == &nan_scale ? "layer 0" : "layer 1"), std::string::npos)
        << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  }
}

// A query, key or value leaves float's range: the cache's integers must not make a number of it.
TEST_P(BackendTest, AnOverflowBeforeAttentionIsAnError) {
  MatrixView& (*const matrices[])(LayerWeights&) = {[](LayerWeights& l) -> MatrixView& { return l.q; },
                                                    [](LayerWeights& l) -> MatrixView& { return l.k; },
                                                    [](LayerWeights& l) -> MatrixView& { return l.v; }};
  for (const auto of : matrices) {
    ModelWeights w = weights_;
    MatrixView& m = of(w.layers[0]);
    ASSERT_EQ(m.format, Format::kBF16);
    std::vector<std::byte> damaged(m.data, m.data + m.rows * m.row_stride);
    constexpr uint16_t kHuge = 0x7F61;  // 3e38
    for (size_t at = 0; at < static_cast<size_t>(m.row_stride); at += sizeof kHuge)
      std::memcpy(&damaged[at], &kHuge, sizeof kHuge);
    m.data = damaged.data();
    expect_failure_in_layer_0(w);
  }
}

// A NaN or an infinity in a matrix, whatever the matrix is converted to: no quantiser makes a number of it.
TEST_P(BackendTest, AMatrixThatIsNotFiniteIsRefused) {
  const std::pair<const char*, MatrixView& (*)(ModelWeights&)> matrices[] = {
      {"embed", [](ModelWeights& w) -> MatrixView& { return w.embed; }},
      {"head", [](ModelWeights& w) -> MatrixView& { return w.head; }},
      {"q", [](ModelWeights& w) -> MatrixView& { return w.layers[1].q; }},
      {"o", [](ModelWeights& w) -> MatrixView& { return w.layers[0].o; }}};
  for (const auto& [name, of] : matrices) {
    ModelWeights w = weights_;
    MatrixView& m = of(w);
    ASSERT_EQ(m.format, Format::kBF16);
    std::vector<std::byte> damaged(m.data, m.data + m.rows * m.row_stride);
    m.data = damaged.data();
    for (const uint16_t code : {uint16_t{0x7FC0}, uint16_t{0xFF80}}) {
      std::memcpy(&damaged[damaged.size() / 2], &code, sizeof code);
      for (const auto dense : {std::optional<Format>(), std::optional(Format::kBF16),
                               std::optional(Format::kQ8_0), std::optional(Format::kMxfp8)}) {
        auto backend = create_backend(GetParam(), {.threads = 2, .dense = dense});
        if (!backend.ok()) continue;  // which does not have this format
        const Status status = backend.value()->load(config_, w, {});
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name << ": " << status.message();
        EXPECT_NE(status.message().find("NaN"), std::string::npos) << name << ": " << status.message();
      }
    }
  }
}

}  // namespace
}  // namespace moesaic
