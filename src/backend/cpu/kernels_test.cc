// Every kernel of every instruction set that this machine runs, against plain double-precision loops.
#include "backend/cpu/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "backend/cpu/kv_cache.h"
#include "backend/cpu/multiply_rate.h"
#include "backend/cpu/test_matrices.h"
#include "base/sanitizer.h"
#include "base/seconds.h"

namespace moesaic::cpu {

#if defined(__x86_64__)
extern const Kernels kKernels_avxvnni_evex;
#endif

namespace {

// The sets that the program would choose from, and one that only stands in for another: avxvnni_evex is
// avxvnni's source with its two instructions in AVX-512's encoding, where there is no AVX-VNNI.
std::vector<const Kernels*> tested_kernels() {
  std::vector<const Kernels*> tested = available_kernels();
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"))
    tested.push_back(&kKernels_avxvnni_evex);
#endif
  for (const Kernels* kernels : emulated_kernels()) tested.push_back(kernels);
  return tested;
}

class KernelTest : public testing::TestWithParam<const Kernels*> {
 protected:
  const Kernels& kernels_ = *GetParam();
  ThreadPool pool_{2};
  std::mt19937 rng_{7};

  std::vector<float> normal(size_t n, float scale = 1) {
    std::normal_distribution<float> d(0, scale);
    std::vector<float> x(n);
    for (float& v : x) v = d(rng_);
    return x;
  }
};

// Returns the values that an activation row holds after conversion, exactly.
std::vector<double> act_row(const ActView& act, Act format, int64_t row) {
  std::vector<double> x(act.cols);
  for (int64_t c = 0; c < act.cols; ++c) {
    const void* data = static_cast<const uint8_t*>(act.data) + row * act.stride;
    if (format == Act::kInt8)
      x[c] = static_cast<const int8_t*>(data)[c] *
             static_cast<double>(act.scale[row * (act.cols / 32) + c / 32]);
    if (format == Act::kBF16) x[c] = mx::decode_bf16(static_cast<const uint16_t*>(data)[c]);
    if (format == Act::kBlockFloat)
      x[c / 32 * 32 + nibble_element(c % 32)] = mx::decode_bf16(static_cast<const uint16_t*>(data)[c]);
    if (format == Act::kF32) x[c] = static_cast<const float*>(data)[c];
  }
  return x;
}

TEST_P(KernelTest, GemmEveryFormatAndTokenCount) {
  constexpr Format kFormats[] = {Format::kF32,   Format::kF16,       Format::kBF16, Format::kQ8_0,
                                 Format::kMxfp4, Format::kMxfp4Gguf, Format::kMxfp8};
  for (const Format format : kFormats) {
    for (const int cols : {32, 96, 2880}) {
      const int rows = 37;  // two whole panels and a ragged third
      Source source = make_source(format, rows, cols, rng_);
      const Format pack = packed_format(format, std::nullopt);
      auto packed = pack_panels(pack, cols, stack({&source.view}), "test", kernels_, pool_);
      ASSERT_TRUE(packed.ok()) << packed.status().message();
      auto workspaces = make_workspaces(2, cols).value();
      for (const int tokens : {1, 2, 3, 4, 5, 6, 7, 13, 40}) {
        const std::vector<float> x = normal(static_cast<size_t>(tokens) * cols);
        ActRows act;
        act.assign(kernels_, pool_, act_format(pack, kernels_), x.data(), cols, tokens, cols);
        std::vector<float> y(tokens * 48, NAN);
        for_each_tile(kernels_, pool_, workspaces, packed.value(), act.view(), tokens, {},
                      [&](const float* tile, int first, int n, int64_t panel, int count, int) {
                        for (int t = 0; t < n; ++t) {
                          for (int i = 0; i < count * kPanel; ++i)
                            y[(first + t) * 48 + panel * kPanel + i] = tile[t * 32 + i];
                        }
                      });
        std::vector<float> w(cols);
        for (int r = 0; r < rows; ++r) {
          read_row(source.view, r, w);
          for (int t = 0; t < tokens; ++t) {
            const std::vector<double> a = act_row(act.view(), act_format(pack, kernels_), t);
            double want = 0, norm = 0;
            for (int c = 0; c < cols; ++c) want += w[c] * a[c], norm += std::fabs(w[c] * a[c]);
            // Operands are exact; one F32 rounding for each of at most cols + 2 additions, in practice far
            // fewer.
            ASSERT_NEAR(y[t * 48 + r], want, norm * 1.2e-7 * std::sqrt(cols) * 2 + 1e-30)
                << kernels_.name << " " << format_name(format) << " cols " << cols << " tokens " << tokens
                << " row " << r;
          }
        }
        for (int t = 0; t < tokens; ++t) {
          for (int r = rows; r < 48; ++r) ASSERT_EQ(y[t * 48 + r], 0.0f);
        }
      }
    }
  }
}

ThreadPlan plan_of(const std::vector<int>& threads) {
  ThreadPlan plan{.threads = 0, .cpus = 2};
  for (const int t : threads) {
    plan.nodes.push_back({.id = static_cast<int>(plan.nodes.size()), .threads = t});
    plan.threads += t;
  }
  return plan;
}

// On machines with several NUMA nodes pairs lie elsewhere in memory: each has one place, a node's are
// neighbours, and what is computed from them is the same.
// Only the set that this machine takes is tested: others may be compiled without optimisation. The operands
// of one panel pair and 48 tokens stay in the caches.
TEST(MultiplyRate, IsWhatNoProductBeats) {
  if (kMemoryIsSanitized) GTEST_SKIP() << "nothing is as fast as it should be";
  const Kernels& kernels = *available_kernels().front();
  constexpr int kCols = 2880, kTokens = 48, kTries = 20, kRepetitions = 400;
  constexpr double kOperations = 2.0 * kTokens * kPair * kPanel * kCols;
  ThreadPool pool(1);
  std::mt19937 rng(7);
  const Source source = make_source(Format::kMxfp4, kPair * kPanel, kCols, rng);
  const PackedMatrix packed =
      pack_panels(Format::kMxfp4, kCols, stack({&source.view}), "test", kernels, pool).value();
  auto workspaces = make_workspaces(1, kCols).value();
  const std::vector<float> x(size_t{kTokens} * kCols, 1.0f);
  ActRows act;
  act.assign(kernels, pool, act_format(Format::kMxfp4, kernels), x.data(), kCols, kTokens, kCols);
  double most = 0, gemm = 0;
  for (int i = 0; i < kTries && (i == 0 || gemm > most || gemm < most / 10); ++i) {
    most = std::max(most, measure_multiply_rate(kernels, pool));
    // One window times all repetitions, as the rate's does. A single product is short enough to escape what
    // interrupts long ones.
    const auto start = std::chrono::steady_clock::now();
    for (int repetition = 0; repetition < kRepetitions; ++repetition)
      for_each_tile(kernels, pool, workspaces, packed, act.view(), kTokens, {},
                    [](const float*, int, int, int64_t, int, int) {});
    gemm = std::max(gemm, kRepetitions * kOperations / seconds_since(start));
  }
  EXPECT_LE(gemm, most) << kernels.name;
  EXPECT_GE(gemm, most / 10) << kernels.name;
}

TEST_P(KernelTest, NumaNodesChangeOnlyPlaces) {
  constexpr int kCols = 96, kSections = 3, kRows = 7 * 2 * kPanel;
  std::vector<Source> sources;
  std::vector<const MatrixView*> views;
  for (int i = 0; i < kSections; ++i) sources.push_back(make_source(Format::kMxfp4, kRows, kCols, rng_));
  for (const Source& s : sources) views.push_back(&s.view);
  const std::vector<float> x = normal(kCols);
  ActRows act;
  act.assign(kernels_, pool_, Act::kInt8, x.data(), kCols, 1, kCols);
  auto workspaces = make_workspaces(9, kCols).value();
  std::vector<float> want;
  for (const auto& threads : {std::vector{1}, {2}, {1, 1}, {3, 1, 2}, {1, 1, 1, 1, 1, 1, 1, 1, 1}}) {
    ThreadPool pool(plan_of(threads));
    auto packed = pack_panels(Format::kMxfp4, kCols, stack(views), "test", kernels_, pool, kSections).value();
    std::vector<int> used(packed.pairs());
    for (int64_t pair = 0; pair < packed.pairs(); ++pair) {
      const int64_t slot = packed.slot(pair), at = pair % 7;
      ++used.at(slot);
      int node = 0;
      while (at >= pool.node_begin(7, node + 1)) ++node;
      const auto [first, end] = packed.node_slots(node);
      EXPECT_TRUE(first <= slot && slot < end) << "pair " << pair;
    }
    EXPECT_EQ(used, std::vector<int>(packed.pairs(), 1));
    std::vector<float> y(packed.pairs() * 2 * kPanel, NAN);
    for_each_pair(pool, kSections, 7, {}, [&](int64_t section, int64_t pair, int thread) {
      const float* tile = run_pair(kernels_, packed, section * 7 + pair, act.view(), 1, workspaces[thread]);
      std::copy_n(tile, 2 * kPanel, y.data() + (section * 7 + pair) * 2 * kPanel);
    });
    if (want.empty()) want = y;
    EXPECT_EQ(y, want) << pool.nodes() << " nodes";
  }
}

// Nor on the place of its row: row r stands twice, in reverse order.
TEST_P(KernelTest, AResultDoesNotDependOnItsNeighbours) {
  constexpr int kRows = 29;  // twice as many: MXFP4 is expanded
  for (const Format format : {Format::kBF16, Format::kQ8_0, Format::kMxfp4, Format::kF32}) {
    Source source = make_source(format, 32, 288, rng_);
    const Format pack = packed_format(format, std::nullopt);
    auto packed = pack_panels(pack, 288, stack({&source.view}), "test", kernels_, pool_).value();
    auto workspaces = make_workspaces(1, 288).value();
    const std::vector<float> x = normal(kRows * 288);
    std::vector<int32_t> slots;
    for (int r = 0; r < kRows; ++r) slots.insert(slots.end(), {kRows - 1 - r, 2 * kRows - 1 - r});
    ActRows act;
    act.assign(kernels_, pool_, act_format(pack, kernels_), x.data(), 288, kRows, 288, {}, slots);
    const float* tile = run_pair(kernels_, packed, 0, act.view(), 2 * kRows, workspaces[0]);
    const std::vector<float> all(tile, tile + 2 * kRows * 32);
    for (int r = 0; r < kRows; ++r) {
      ActRows one;
      one.assign(kernels_, pool_, act_format(pack, kernels_), &x[r * 288], 288, 1, 288);
      tile = run_pair(kernels_, packed, 0, one.view(), 1, workspaces[0]);
      for (const int slot : {slots[2 * r], slots[2 * r + 1]}) {
        ASSERT_EQ(std::memcmp(tile, &all[slot * 32], 128), 0)
            << kernels_.name << " " << format_name(format) << " row " << r << " slot " << slot;
      }
    }
  }
}

// Hints and distances are only about time: the same bits, with data that ends where the buffer does.
TEST_P(KernelTest, NoTuningChangesAResult) {
  constexpr Format kFormats[] = {Format::kF32,  Format::kF16,   Format::kBF16,
                                 Format::kQ8_0, Format::kMxfp4, Format::kMxfp8};
  for (const Format format : kFormats) {
    for (const Act act_as : {act_format(packed_format(format, std::nullopt), kernels_), Act::kF32}) {
      const Format pack = packed_format(format, std::nullopt);
      if (act_as != act_format(pack, kernels_) && pack != Format::kMxfp4) continue;
      const Source source = make_source(format, 64, 96, rng_);
      const auto packed = pack_panels(pack, 96, stack({&source.view}), "test", kernels_, pool_).value();
      auto workspaces = make_workspaces(1, 96).value();
      const std::vector<float> x = normal(13 * 96);
      ActRows act;
      act.assign(kernels_, pool_, act_as, x.data(), 96, 13, 96);
      for (int tokens = 1; tokens <= 13; ++tokens) {
        const auto tile_of = [&](const GemmTuning& tuning) {
          std::fill_n(workspaces[0].tile.as<float>(), tokens * 32, NAN);
          const float* tile = run_pair(kernels_, packed, 1, act.view(), tokens, workspaces[0], tuning);
          return std::vector<float>(tile, tile + tokens * 32);
        };
        const std::vector<float> want = tile_of({.prefetch = Prefetch::kNone});
        for (const CpuTuning& t : tunables().front().candidates({.experts = {Prefetch::kT1, 1 << 16}})) {
          ASSERT_EQ(std::memcmp(tile_of(t.experts).data(), want.data(), want.size() * sizeof(float)), 0)
              << kernels_.name << " " << format_name(format) << " tokens " << tokens << " "
              << name_of(t.experts);
        }
      }
    }
  }
}

TEST(ForEachPair, EveryPairOnceWhateverTheRuns) {
  ThreadPool pool(3);
  std::vector<CpuTuning> tunings;
  for (const Tunable& tunable : tunables()) {
    for (const CpuTuning& t : tunable.candidates({})) tunings.push_back(t);
  }
  tunings.push_back({.runs = {1024, 1}}), tunings.push_back({.runs = {1, 1024}});
  for (const CpuTuning& t : tunings) {
    for (const auto& shape : {std::pair{1, 1}, {1, 37}, {4, 90}, {3, 1}, {0, 8}}) {
      std::vector<std::atomic<int>> seen(shape.first * shape.second);
      for_each_pair(pool, shape.first, shape.second, t.runs,
                    [&](int64_t section, int64_t pair, int) { ++seen[section * shape.second + pair]; });
      for (const auto& count : seen) ASSERT_EQ(count.load(), 1) << t.runs.longest << " " << t.runs.a_thread;
    }
  }
}

// E4M3 and E2M1 times powers of two, and their products, are exact in F32: what is left is the order of sums.
TEST_P(KernelTest, Mxfp4MeetsRoundedActivations) {
  for (const int cols : {32, 96, 2880}) {
    const Source source = make_source(Format::kMxfp4, 32, cols, rng_);
    const auto packed = pack_panels(Format::kMxfp4, cols, stack({&source.view}), "test", kernels_, pool_);
    auto workspaces = make_workspaces(1, cols).value();
    for (const Format format : {Format::kMxfp8, Format::kMxfp4}) {
      for (const int tokens : {1, 2, 7, 13}) {
        std::vector<float> x = normal(static_cast<size_t>(tokens) * cols, 3), w(cols);
        ActRows act;
        act.assign(kernels_, pool_, Act::kF32, x.data(), cols, tokens, cols, {Format::kBF16, format});
        round_to(Format::kBF16, x), round_to(format, x);
        const float* tile = run_pair(kernels_, packed.value(), 0, act.view(), tokens, workspaces[0]);
        for (int r = 0; r < 32; ++r) {
          read_row(source.view, r, w);
          for (int t = 0; t < tokens; ++t) {
            double want = 0, norm = 0;
            for (int c = 0; c < cols; ++c) {
              const double product = double{w[c]} * x[t * cols + c];
              want += product, norm += std::fabs(product);
            }
            ASSERT_NEAR(tile[t * 32 + r], want, norm * 1.2e-7 * std::sqrt(cols))
                << kernels_.name << " " << format_name(format) << " cols " << cols << " tokens " << tokens;
          }
        }
      }
    }
  }
}

std::vector<float> first_tile(const Kernels& kernels, ThreadPool& pool, const Source& source, const float* x,
                              int tokens) {
  const int64_t cols = source.view.cols;
  const Format pack = packed_format(source.view.format, std::nullopt);
  auto packed = pack_panels(pack, cols, stack({&source.view}), "test", kernels, pool).value();
  auto workspaces = make_workspaces(1, cols).value();
  ActRows act;
  act.assign(kernels, pool, act_format(pack, kernels), x, cols, tokens, cols);
  const float* tile = run_pair(kernels, packed, 0, act.view(), tokens, workspaces[0]);
  return {tile, tile + tokens * kPair * kPanel};
}

// Integer dot products are exact and scales multiply in one order.
TEST_P(KernelTest, IntegerFormatsMatchTheScalarSetBitForBit) {
  const Kernels& scalar = *available_kernels().back();
  for (const Format format : {Format::kQ8_0, Format::kMxfp4, Format::kMxfp4Gguf}) {
    if (act_format(packed_format(format, std::nullopt), kernels_) != Act::kInt8) continue;
    const Source source = make_source(format, 32, 288, rng_);
    const std::vector<float> x = normal(41 * 288);
    for (const int tokens : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 17, 41}) {
      const std::vector<float> got = first_tile(kernels_, pool_, source, x.data(), tokens),
                               want = first_tile(scalar, pool_, source, x.data(), tokens);
      ASSERT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0)
          << kernels_.name << " " << format_name(format) << " tokens " << tokens;
    }
  }
}

// Weights and activations of the largest magnitudes, all of one sign and with signs that alternate in words
// and in pairs of bytes: where an instruction or a sum of 16 bits would saturate or wrap.
TEST_P(KernelTest, IntegerSumsHoldTheLargestProducts) {
  constexpr int kCols = 64, kTokens = 7;
  constexpr uint32_t kSigns[] = {0, 0xFFFFFFFF, 0xAAAAAAAA, 0xCCCCCCCC, 0xF0F0F0F0, 0xFFFF0000, 0x33333333};
  const auto negative = [&](uint32_t signs, int c) { return (signs >> c % 32 & 1) != 0; };
  for (const Format format : {Format::kQ8_0, Format::kMxfp4}) {
    Source source = make_source(format, 32, kCols, rng_);
    for (int r = 0; r < 32; ++r) {
      for (int c = 0; c < kCols; ++c) {
        const bool minus = negative(kSigns[r % kTokens], c);
        if (format == Format::kQ8_0) {
          source.data[(r * kCols + c) / 32 * 34 + 2 + c % 32] = minus ? 0x80 : 0x7F;
        } else {
          uint8_t& pair = source.data[(r * kCols + c) / 2];
          const int shift = c % 2 * 4, code = minus ? 15 : 7;
          pair = static_cast<uint8_t>((pair & ~(15 << shift)) | code << shift);
        }
      }
    }
    std::vector<float> x(kTokens * kCols), w(kCols);
    for (int t = 0; t < kTokens; ++t) {
      for (int c = 0; c < kCols; ++c) x[t * kCols + c] = negative(kSigns[t], c) ? -127.0f : 127.0f;
    }
    for (int tokens = 1; tokens <= kTokens; ++tokens) {
      const std::vector<float> got = first_tile(kernels_, pool_, source, x.data(), tokens);
      for (int r = 0; r < 32; ++r) {
        read_row(source.view, r, w);
        for (int t = 0; t < tokens; ++t) {
          double want = 0, norm = 0;
          for (int c = 0; c < kCols; ++c)
            want += double{w[c]} * x[t * kCols + c], norm += std::fabs(double{w[c]} * x[t * kCols + c]);
          ASSERT_NEAR(got[t * 32 + r], want, norm * 1e-6)
              << kernels_.name << " " << format_name(format) << " tokens " << tokens << " token " << t
              << " row " << r;
        }
      }
    }
  }
}

TEST_P(KernelTest, DamagedWeightsAreNamed) {
  Source source = make_source(Format::kMxfp4, 16, 64, rng_);
  source.scales[3] = 0xFF;
  auto packed = pack_panels(Format::kMxfp4, 64, stack({&source.view}), "layer 3 experts", kernels_, pool_);
  ASSERT_FALSE(packed.ok());
  EXPECT_EQ(packed.status().message(), "layer 3 experts: a block scale is NaN; the checkpoint is damaged");
}

// Whatever the format is converted to: a quantiser that looks for the largest magnitude alone takes a NaN for
// 0.
TEST_P(KernelTest, WhatIsNotFiniteIsNamedInEveryFormat) {
  constexpr int64_t kRows = 40, kCols = 64;
  for (const Format pack :
       {Format::kF32, Format::kF16, Format::kBF16, Format::kQ8_0, Format::kMxfp4, Format::kMxfp8}) {
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      for (const size_t at : {size_t{0}, size_t{777}, size_t{kRows * kCols - 1}}) {
        std::vector<float> values(kRows * kCols, 0.5F);
        const MatrixView m =
            dense_view(Format::kF32, kRows, kCols, reinterpret_cast<const std::byte*>(values.data()));
        EXPECT_TRUE(pack_panels(pack, kCols, stack({&m}), "q", kernels_, pool_).ok());
        values[at] = bad;
        const auto packed = pack_panels(pack, kCols, stack({&m}), "q", kernels_, pool_);
        EXPECT_NE(packed.status().message().find("q: a "), std::string::npos) << static_cast<int>(pack);
      }
    }
  }
}

TEST_P(KernelTest, WhatTheFormatCannotHoldIsNamed) {
  std::vector<float> values(16 * 64, 0.5F);
  const MatrixView m = dense_view(Format::kF32, 16, 64, reinterpret_cast<const std::byte*>(values.data()));
  for (const Format pack : {Format::kF16, Format::kBF16, Format::kQ8_0}) {
    values[70] = 3.4e38F;
    const auto packed = pack_panels(pack, 64, stack({&m}), "q", kernels_, pool_);
    EXPECT_NE(packed.status().message().find("too large"), std::string::npos) << static_cast<int>(pack);
  }
}

TEST_P(KernelTest, QuantizeRow) {
  const std::vector<float> x = normal(96, 3);
  std::vector<int8_t> q(96);
  std::vector<float> scale(3);
  std::vector<int32_t> bias(3);
  kernels_.quantize_row(x.data(), 96, q.data(), scale.data(), bias.data());
  for (int b = 0; b < 3; ++b) {
    int sum = 0;
    for (int i = 0; i < 32; ++i) {
      sum += q[b * 32 + i];
      EXPECT_NEAR(q[b * 32 + i] * scale[b], x[b * 32 + i], scale[b] * 0.5001f);
    }
    // Tables without VNNI put something else there (BlockSum), which the products check.
    if (kernels_.weight_offset != 0) {
      EXPECT_EQ(bias[b], -kernels_.weight_offset * sum);
    }
  }
  const std::vector<float> zeros(32);
  kernels_.quantize_row(zeros.data(), 32, q.data(), scale.data(), bias.data());
  EXPECT_EQ(q[0], 0);
  EXPECT_TRUE(std::isfinite(scale[0]));
}

TEST_P(KernelTest, RmsNorm) {
  const std::vector<float> x = normal(2880, 5), w = normal(2880);
  std::vector<float> y(2880);
  ASSERT_TRUE(kernels_.rmsnorm(x.data(), w.data(), 2880, 1e-5f, y.data()));
  double squares = 0;
  for (const float v : x) squares += static_cast<double>(v) * v;
  for (int i = 0; i < 2880; ++i) ASSERT_NEAR(y[i], x[i] / std::sqrt(squares / 2880 + 1e-5) * w[i], 1e-5);
  std::vector<float> bad = x;
  bad[77] = NAN;
  EXPECT_FALSE(kernels_.rmsnorm(bad.data(), w.data(), 2880, 1e-5f, y.data()));
  bad[77] = INFINITY;
  EXPECT_FALSE(kernels_.rmsnorm(bad.data(), w.data(), 2880, 1e-5f, y.data()));
  for (const float weight : {-1e30f, 3e38f}) {  // larger than the integers' scales, which would say so little
    std::vector<float> large = w;
    large[2879] = weight;
    EXPECT_FALSE(kernels_.rmsnorm(x.data(), large.data(), 2880, 1e-5f, y.data()));
  }
}

TEST_P(KernelTest, Swiglu) {
  const std::vector<float> tile = normal(5 * 32, 6), gb = normal(16), ub = normal(16);
  std::vector<float> out(5 * 16);
  kernels_.swiglu_tile(tile.data(), gb.data(), ub.data(), 5, 1.702f, 7.0f, out.data(), 16);
  for (int t = 0; t < 5; ++t) {
    for (int i = 0; i < 16; ++i) {
      const double gate = std::min(7.0, double{tile[t * 32 + i]} + gb[i]);
      const double up = std::clamp(double{tile[t * 32 + 16 + i]} + ub[i], -7.0, 7.0);
      const double want = gate / (1 + std::exp(-1.702 * gate)) * (up + 1);
      ASSERT_NEAR(out[t * 16 + i], want, 3e-6 * (1 + std::fabs(want)));
    }
  }
}

// It would be the limit, and nobody would hear of it.
TEST_P(KernelTest, SwigluKeepsNaN) {
  const std::vector<float> zeros(16);
  std::vector<float> out(16);
  for (const int bad : {3, 16 + 3}) {
    std::vector<float> tile = normal(32, 6);
    tile[bad] = NAN;
    kernels_.swiglu_tile(tile.data(), zeros.data(), zeros.data(), 1, 1.702f, 7.0f, out.data(), 16);
    for (int i = 0; i < 16; ++i) EXPECT_EQ(std::isnan(out[i]), i == 3) << i;
  }
}

// Rounds x as the kernels do and returns what the integers stand for.
std::vector<float> through_int8(const Kernels& kernels, const float* x, int n) {
  std::vector<int8_t> q(n);
  int32_t sum;
  const float scale = kernels.quantize_int8(x, n, q.data(), &sum);
  EXPECT_EQ(sum, std::accumulate(q.begin(), q.end(), 0));
  std::vector<float> y(n);
  for (int i = 0; i < n; ++i) y[i] = scale * q[i];
  return y;
}
std::vector<float> through_int16(const Kernels& kernels, const float* x, int n) {
  std::vector<int16_t> q(n);
  const float scale = kernels.quantize_int16(x, n, q.data());
  std::vector<float> y(n);
  for (int i = 0; i < n; ++i) y[i] = scale * q[i];
  return y;
}

TEST_P(KernelTest, FiniteRows) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const int n : {16, 48, 160}) {
    std::vector<float> x = normal(n);
    x[0] = std::numeric_limits<float>::max(), x[1] = -x[0], x[2] = std::numeric_limits<float>::denorm_min();
    EXPECT_TRUE(kernels_.finite(x.data(), n));
    for (const float odd : {kInfinity, -kInfinity, std::nanf("")}) {
      for (int i = 0; i < n; ++i) {
        const float was = std::exchange(x[i], odd);
        EXPECT_FALSE(kernels_.finite(x.data(), n)) << i;
        x[i] = was;
      }
    }
  }
}

TEST_P(KernelTest, QuantizeVector) {
  const std::vector<float> x = normal(80);
  float amax = 0;
  for (const float v : x) amax = std::max(amax, std::fabs(v));
  const std::vector<float> y = through_int8(kernels_, x.data(), 80),
                           z = through_int16(kernels_, x.data(), 80);
  for (int i = 0; i < 80; ++i) {
    EXPECT_NEAR(y[i], x[i], amax / 127 * 0.5001f);
    EXPECT_NEAR(z[i], x[i], amax / kVLimit * 0.5001f);
  }
}

// A paged cache with scattered pages, one of its two heads filled, and double-precision attention over the
// values that its integers stand for.
struct AttendCase {
  int head_dim, heads, first, last;
};

void check_attend(const Kernels& kernels, const AttendCase& c, std::mt19937& rng) {
  const auto normal = [&](size_t n, float scale) {
    std::normal_distribution<float> d(0, scale);
    std::vector<float> x(n);
    for (float& v : x) v = d(rng);
    return x;
  };
  const int pages = 23, head_dim = c.head_dim, heads = c.heads;
  KvCache cache = KvCache::allocate(pages + 3, 2, head_dim).value();
  std::vector<int32_t> table(pages);
  for (int i = 0; i < pages; ++i) table[i] = i < c.first / kPageTokens ? -1 : (i * 7 + 3) % (pages + 3);
  std::vector<std::vector<float>> k(c.last + 1), v(c.last + 1), q(heads);
  for (int t = c.first / kPageTokens * kPageTokens; t <= c.last; ++t) {
    const std::vector<float> key = normal(head_dim, 1), value = normal(head_dim, 1);
    cache.append(kernels, table[t / kPageTokens], t % kPageTokens, 1, key.data(), value.data());
    k[t] = through_int8(kernels, key.data(), head_dim), v[t] = through_int16(kernels, value.data(), head_dim);
  }
  const std::vector<float> sinks = normal(heads, 1);
  std::vector<int8_t> q8(heads * head_dim);
  std::vector<int32_t> q_bias(heads);
  std::vector<float> q_scale(heads), out(heads * head_dim, NAN);
  for (int h = 0; h < heads; ++h) {
    const std::vector<float> x = normal(head_dim, 0.3f);
    int32_t sum;
    q_scale[h] = kernels.quantize_int8(x.data(), head_dim, &q8[h * head_dim], &sum);
    q_bias[h] = -kernels.weight_offset * sum;
    q[h] = through_int8(kernels, x.data(), head_dim);
  }
  kernels.attend({.heads = heads,
                  .head_dim = head_dim,
                  .q = q8.data(),
                  .q_bias = q_bias.data(),
                  .q_scale = q_scale.data(),
                  .sinks = sinks.data(),
                  .pages = table.data(),
                  .k_cache = cache.k.as<uint8_t>() + kPageTokens * head_dim,
                  .v_cache = cache.v.as<int16_t>() + kPageTokens * head_dim,
                  .k_scale = cache.k_scale.as<float>() + kPageTokens,
                  .v_scale = cache.v_scale.as<float>() + kPageTokens,
                  .page_stride = cache.page_stride(),
                  .scale_page_stride = cache.scale_page_stride(),
                  .first = c.first,
                  .last = c.last,
                  .out = out.data()});
  for (int h = 0; h < heads; ++h) {
    double sum = std::exp(double{sinks[h]}), magnitude = 0;
    std::vector<double> want(head_dim);
    for (int t = c.first; t <= c.last; ++t) {
      const double e = std::exp(std::inner_product(q[h].begin(), q[h].end(), k[t].begin(), 0.0));
      sum += e;
      for (int d = 0; d < head_dim; ++d)
        want[d] += e * v[t][d], magnitude = std::max(magnitude, double{std::fabs(v[t][d])});
    }
    // Each softmax weight is rounded to 2^-15 of the largest one; n such errors with random signs add as
    // sqrt(n).
    const double tolerance = magnitude * (std::sqrt(c.last - c.first + 1.0) / 32768 * 2 + 2e-6);
    for (int d = 0; d < head_dim; ++d) {
      ASSERT_NEAR(out[h * head_dim + d], want[d] / sum, tolerance)
          << kernels.name << " head_dim " << head_dim << " heads " << heads << " positions " << c.first
          << ".." << c.last;
    }
  }
}

TEST_P(KernelTest, AttendSinksWindowsAndPages) {
  for (const int head_dim : {32, 64, 80, 128}) {
    for (const int heads : {1, 3, 8}) {
      for (const auto& [first, last] : {std::pair{0, 0}, {0, 31}, {0, 32}, {5, 132}, {173, 300}, {0, 700}}) {
        check_attend(kernels_, {head_dim, heads, first, last}, rng_);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllIsas, KernelTest, testing::ValuesIn(tested_kernels()),
                         [](const auto& kernel) { return std::string(kernel.param->name); });

}  // namespace
}  // namespace moesaic::cpu
