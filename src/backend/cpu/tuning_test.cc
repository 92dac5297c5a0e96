// The choice of how weights are read: a pure function of timings, its file and its option.
#include "backend/cpu/tuning.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>

#include "backend/cpu/probe.h"
#include "base/temporary_folder.h"
#include "mx/block.h"

namespace moesaic::cpu {
namespace {

namespace fs = std::filesystem;

TEST(CpuPrefetch, IsParsed) {
  EXPECT_FALSE(parse_prefetch("auto").value().has_value());
  EXPECT_EQ(parse_prefetch("none").value()->prefetch, Prefetch::kNone);
  EXPECT_EQ(parse_prefetch("t0:1024").value(), (GemmTuning{Prefetch::kT0, 1024}));
  EXPECT_EQ(parse_prefetch("t1:64").value(), (GemmTuning{Prefetch::kT1, 64}));
  EXPECT_EQ(parse_prefetch("nta:65536").value(), (GemmTuning{Prefetch::kNta, 65536}));
}

TEST(CpuPrefetch, EverythingElseIsOneLine) {
  for (const char* text : {"",
                           "t0",
                           "t0:",
                           "t0:0",
                           "t0:63",
                           "t0:65",
                           "t0:65600",
                           "t0:-64",
                           "t0:+64",
                           "t0: 64",
                           "t0:64 ",
                           "t0:64k",
                           "T0:1024",
                           "t2:1024",
                           "none:64",
                           "auto:64",
                           ":64",
                           "nta:1024:2",
                           "t0:99999999999999999999",
                           "t0:1e3"}) {
    const auto parsed = parse_prefetch(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(parsed.status().message().find(std::string("'") + text + "'"), std::string::npos) << text;
    EXPECT_EQ(parsed.status().message().find('\n'), std::string::npos);
  }
}

TEST(CpuPrefetch, EveryCandidateHasANameThatIsReadBack) {
  for (const Tunable& tunable : tunables()) {
    const std::vector<CpuTuning> candidates = tunable.candidates({});
    ASSERT_GT(candidates.size(), 1u);
    EXPECT_EQ(candidates[0], CpuTuning());
    for (size_t i = 0; i < candidates.size(); ++i) {
      for (const GemmTuning& gemm : {candidates[i].experts, candidates[i].dense})
        EXPECT_EQ(parse_prefetch(name_of(gemm)).value(), gemm);
      EXPECT_EQ(std::ranges::count(candidates, candidates[i]), 1) << tunable.name << " " << i;
    }
  }
}

TEST(CpuTuningChoice, TheFirstOneWinsUnlessAnotherIsClearlyQuicker) {
  const std::vector<double> one = {1.0, 1.0, 1.0}, near = {0.98, 0.98, 0.98}, best = {0.9, 0.9, 0.9},
                            good = {0.92, 0.92, 0.92}, slow = {1.2, 1.2, 1.2};
  EXPECT_EQ(choose({one, near, slow}), 0u);
  EXPECT_EQ(choose({one, near, best, good}), 2u);
  EXPECT_EQ(choose({one}), 0u);
  EXPECT_EQ(choose({{}, {}}), 0u);  // no time for any
}

TEST(CpuTuningChoice, NoiseDoesNotChoose) {
  // Two lucky samples; and one in a stretch when everything is quick.
  EXPECT_EQ(choose({{1.0, 1.0, 1.0}, {0.9, 0.9, 1.2}}), 0u);
  EXPECT_EQ(choose({{1.0, 1.0, 1.0, 1.0, 1.0, 0.7}, {1.0, 1.0, 0.6, 1.0, 1.0, 0.7}}), 0u);
  // The first one had luck once; every other round says otherwise.
  EXPECT_EQ(choose({{1.0, 0.7, 1.0, 1.0, 1.0, 1.0}, {0.8, 0.8, 0.8, 0.8, 0.8, 0.8}}), 1u);
  // Disturbances make samples longer, never shorter.
  EXPECT_EQ(choose({{1.0, 1.0, 1.0, 5.0}, {3.0, 0.8, 0.8, 0.8}}), 1u);
  // With fewer samples nobody knows the noise: a tenth is asked for.
  EXPECT_EQ(choose({{1.0}, {0.93}}), 0u);
  EXPECT_EQ(choose({{1.0, 1.0}, {0.93, 0.93}}), 0u);
  EXPECT_EQ(choose({{1.0}, {0.5}}), 1u);
  EXPECT_TRUE(is_calm({1.0, 1.08, 1.01, 9.0}));
  EXPECT_FALSE(is_calm({1.0, 1.0, 1.12, 9.0}));
  EXPECT_FALSE(is_calm({1.0, 1.0}));
}

TEST(CpuTuningChoice, RacesTakeTurnsAndDropThoseFarBehind) {
  const double cost[] = {1.5, 0.9, 3.0, 1.1};
  std::vector<size_t> order;
  const Samples samples = race(4, 1e9, [&](size_t i) { return order.push_back(i), cost[i]; });
  EXPECT_EQ(std::vector<size_t>(order.begin(), order.begin() + 8),
            (std::vector<size_t>{0, 1, 2, 3, 3, 2, 1, 0}));
  EXPECT_EQ(samples[2].size(), 3u);
  EXPECT_EQ(samples[3].size(), 3u);
  EXPECT_EQ(samples[0].size(), samples[1].size()) << "the standard is never dropped";
  EXPECT_GT(samples[0].size(), 3u);
  EXPECT_EQ(choose(samples), 1u);
}

TEST(CpuTuningChoice, RacesEndWithTheirTime) {
  for (const double budget : {0.0, 0.5, 3.5, 40.0}) {
    double spent = 0;
    race(8, budget, [&](size_t) { return spent += 1, 1.0; });
    EXPECT_LE(spent, budget + 1);
  }
}

// A disturbance of random length in a third of all samples, as beside other programs.
TEST(CpuTuningChoice, FindsTheBestBesideOtherPrograms) {
  std::mt19937 rng(3);
  std::uniform_real_distribution<double> uniform(0, 1);
  int right = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const Samples samples = race(10, 1e9, [&](size_t i) {
      const double own = i == 7 ? 0.8 : 1.0 + 0.02 * static_cast<double>(i);
      return own * (1 + 0.01 * uniform(rng)) + (uniform(rng) < 0.33 ? uniform(rng) : 0);
    });
    right += choose(samples) == 7;
  }
  EXPECT_GE(right, 190);
}

constexpr const char* kCpuinfo =
    "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel name\t: AMD EPYC\nmicrocode\t: "
    "0xa101154\n"
    "cpu MHz\t\t: 2596.100\nflags\t\t: fpu vme\n\nprocessor\t: 1\nmodel name\t: Another\n";

TEST(CpuTuningKey, IsOfModelMicrocodeKernelsThreadsAndWeights) {
  const std::string cpu = cpu_identity(kCpuinfo);
  EXPECT_EQ(cpu,
            "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel name\t: AMD EPYC\nmicrocode\t: 0xa101154\n");
  EXPECT_EQ(cpu_identity(""), "");
  const Kernels &kernels = *available_kernels().front(), &scalar = *available_kernels().back();
  const TunedWeights weights{Format::kMxfp4, Format::kQ8_0, 2880};
  const std::string key = tuning_cache_key(cpu, kernels, 2, weights);
  EXPECT_NE(key, tuning_cache_key(cpu, kernels, 3, weights));
  EXPECT_NE(key, tuning_cache_key(cpu, kernels, 2, {Format::kQ8_0, Format::kQ8_0, 2880}));
  EXPECT_NE(key, tuning_cache_key(cpu, kernels, 2, {Format::kMxfp4, Format::kBF16, 2880}));
  EXPECT_NE(key, tuning_cache_key(cpu, kernels, 2, {Format::kMxfp4, Format::kQ8_0, 96}));
  EXPECT_NE(key, tuning_cache_key(cpu_identity("microcode\t: 0x1\n"), kernels, 2, weights));
  EXPECT_EQ(key == tuning_cache_key(cpu, scalar, 2, weights), &kernels == &scalar);
}

const ChosenTuning kKept{
    .tuning = {.experts = {Prefetch::kNta, 512}, .dense = {Prefetch::kNta, 512}, .runs = {16, 8}},
    .source = TuningSource::kMeasured,
    .day = "2026-11-23"};

TEST(CpuTuningFile, RoundTrip) {
  for (const Tunable& tunable : tunables()) {
    for (const CpuTuning& tuning : tunable.candidates({})) {
      const auto got =
          decode(encode({.tuning = tuning, .source = TuningSource::kMeasured, .day = "2026-11-23"}));
      ASSERT_TRUE(got.has_value());
      EXPECT_EQ(got->tuning, tuning);
      EXPECT_EQ(got->day, "2026-11-23");
      EXPECT_EQ(got->source, TuningSource::kCached);
    }
  }
  EXPECT_EQ(words_of(*decode(encode(kKept))),
            "prefetch NTA at 512 bytes, runs of up to 16 pairs, 8 a thread (measured 2026-11-23, cached)");
  ChosenTuning two = kKept;
  two.tuning.dense = {.prefetch = Prefetch::kNone};
  EXPECT_EQ(words_of(*decode(encode(two))),
            "prefetch NTA at 512 bytes (experts) and no prefetch (dense), runs of up to 16 pairs, 8 a thread "
            "(measured 2026-11-23, cached)");
}

TEST(CpuTuningFile, NothingElseIsRead) {
  const std::string good = encode(kKept);
  for (size_t cut = 0; cut < good.size(); ++cut) EXPECT_FALSE(decode(good.substr(0, cut))) << cut;
  for (const char* text :
       {"", "prefetch none\nruns 8 8\nday 2026-11-23\n", "experts none\nruns 8 8\nday 2026-11-23\n",
        "dense none\nexperts none\nruns 8 8\nday 2026-11-23\n",
        "experts none\ndense none\nruns 0 8\nday 2026-11-23\n",
        "experts none\ndense none\nruns 8 0\nday 2026-11-23\n",
        "experts none\ndense none\nruns 8 99999\nday 2026-11-23\n",
        "experts none\ndense none\nruns -8 8\nday 2026-11-23\n",
        "experts none\ndense none\nruns 8\nday 2026-11-23\n",
        "experts none\ndense none\nruns 08 8\nday 2026-11-23\n",
        "experts none\ndense t9:64\nruns 8 8\nday 2026-11-23\n",
        "experts none\ndense t0:100\nruns 8 8\nday 2026-11-23\n",
        "experts none\ndense none\nruns 8 8\nday yesterday!\n",
        "experts none\ndense none\nruns 8 8\nday 2026-11-23\nmore\n",
        "runs 8 8\nexperts none\ndense none\nday 2026-11-23\n"}) {
    EXPECT_FALSE(decode(text)) << text;
  }
}

// A layer of four experts of random bytes.
class CpuTuningProbe : public FolderTest {
 protected:
  PackedMatrix random_matrix() {
    for (auto& b : bytes_) b = static_cast<uint8_t>(rng_());
    for (auto& b : scales_) b = static_cast<uint8_t>(118 + rng_() % 5);
    const MatrixView view =
        dense_view(Format::kMxfp4, kRows, kCols, reinterpret_cast<std::byte*>(bytes_.data()),
                   reinterpret_cast<std::byte*>(scales_.data()));
    return pack_panels(Format::kMxfp4, kCols, stack({&view}), "test", kernels_, pool_).value();
  }
  DecodeProbe probe() { return probe({{&gate_up_, &down_}}); }
  DecodeProbe probe(std::vector<ExpertWeights> layers) {
    const ExpertActs acts{act_format(layers[0].gate_up->format, kernels_),
                          act_format(layers[0].down->format, kernels_)};
    return {kernels_, pool_, workspaces_, std::move(layers), head_, kExperts, 2, acts};
  }
  PackedMatrix floats() {
    const std::vector<float> values(size_t{kRows} * kCols, 0.5f);
    const MatrixView view =
        dense_view(Format::kF32, kRows, kCols, reinterpret_cast<const std::byte*>(values.data()));
    return pack_panels(Format::kF32, kCols, stack({&view}), "test", kernels_, pool_).value();
  }

  static constexpr int kExperts = 4, kRows = kExperts * 64, kCols = 96;
  std::mt19937 rng_{5};
  const Kernels& kernels_ = *available_kernels().front();
  ThreadPool pool_{2};
  std::vector<uint8_t> bytes_ = std::vector<uint8_t>(kRows * kCols / 2);
  std::vector<uint8_t> scales_ = std::vector<uint8_t>(kRows * kCols / 32);
  PackedMatrix gate_up_ = random_matrix(), down_ = random_matrix(), head_ = random_matrix();
  std::vector<Workspace> workspaces_ = make_workspaces(2, kCols).value();
};

TEST_F(CpuTuningProbe, MeasuresEveryCandidateAndChoosesOneOfEachSetting) {
  DecodeProbe p = probe();
  EXPECT_EQ(p.pass_bytes(), (gate_up_.bytes() + down_.bytes()) / 2);
  EXPECT_EQ(p.pass_bytes(ProbedPart::kDown), down_.bytes() / 2);
  EXPECT_EQ(p.pass_bytes(ProbedPart::kDense), head_.bytes() / 2) << "as much as the other";
  const Measurement m = measure_tuning(p, 1);
  for (const Tunable& tunable : tunables()) {
    int candidates = 0, chosen = 0;
    for (const CandidateTiming& c : m.candidates) {
      if (c.setting != tunable.name) continue;
      ++candidates, chosen += c.chosen;
      EXPECT_GE(c.best_gb_s, c.median_gb_s);
      EXPECT_GT(c.median_gb_s, 0);
    }
    EXPECT_EQ(candidates, std::ssize(tunable.candidates({})));
    EXPECT_EQ(chosen, 1);
  }
  EXPECT_EQ(m.chosen.source, TuningSource::kMeasured);
}

// A file may have gate and up in one format and down in another, and other layers the other way round.
TEST_F(CpuTuningProbe, MatricesOfALayerMayHaveTwoFormats) {
  const PackedMatrix plain = floats();
  DecodeProbe p = probe({{&gate_up_, &plain}, {&plain, &down_}, {&gate_up_, &plain}});
  EXPECT_EQ(p.layers().size(), 2u);
  EXPECT_EQ(p.pass_bytes(), (gate_up_.bytes() + plain.bytes()) / 2);
  EXPECT_FALSE(p.expands(ProbedPart::kDown));
  EXPECT_GT(measure_tuning(p, 0.05).candidates.size(), 0u);
  DecodeProbe other = probe({{&plain, &down_}});
  EXPECT_GT(measure_tuning(other, 0.05).candidates.size(), 0u);
}

TEST_F(CpuTuningProbe, ExpertsThatFitTheCachesAreNotMeasured) {
  DecodeProbe p = probe();
  EXPECT_TRUE(fits_caches(p));
  const ChosenTuning chosen = tuning_for(p, kernels_, 2, folder_);
  EXPECT_EQ(chosen.source, TuningSource::kStandard);
  EXPECT_EQ(chosen.tuning, CpuTuning());
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(CpuTuningProbe, WhatWasKeptIsUsedForItsKeyOnly) {
  DecodeProbe p = probe();
  ASSERT_TRUE(keep_tuning(p, kernels_, 2, folder_, kKept).ok());
  const ChosenTuning got = tuning_for(p, kernels_, 2, folder_);
  EXPECT_EQ(got.source, TuningSource::kCached);
  EXPECT_EQ(got.tuning, kKept.tuning);
  EXPECT_EQ(tuning_for(p, kernels_, 3, folder_).source, TuningSource::kStandard);
  // Another key's file under this one's name.
  fs::copy_file(tuning_file(p, kernels_, 2, folder_), tuning_file(p, kernels_, 3, folder_));
  EXPECT_EQ(tuning_for(p, kernels_, 3, folder_).source, TuningSource::kStandard);
}

TEST_F(CpuTuningProbe, DamagedFilesAreIgnored) {
  DecodeProbe p = probe();
  ASSERT_TRUE(keep_tuning(p, kernels_, 2, folder_, kKept).ok());
  const std::string path = tuning_file(p, kernels_, 2, folder_), good = get(path);
  const auto source_of = [&](const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
    return tuning_for(p, kernels_, 2, folder_).source;
  };
  for (size_t at = 0; at < good.size(); at += 7) {
    std::string bad = good;
    bad[at] ^= 1;
    EXPECT_EQ(source_of(bad), TuningSource::kStandard) << at;
    EXPECT_EQ(source_of(good.substr(0, at)), TuningSource::kStandard) << at;
  }
  EXPECT_EQ(source_of(good), TuningSource::kCached);
}

TEST_F(CpuTuningProbe, AFolderThatCannotBeWrittenIsNoErrorOfALoad) {
  DecodeProbe p = probe();
  EXPECT_EQ(tuning_for(p, kernels_, 2, "/proc/none").source, TuningSource::kStandard);
  EXPECT_EQ(tuning_for(p, kernels_, 2, "").source, TuningSource::kStandard);
  EXPECT_FALSE(keep_tuning(p, kernels_, 2, "/proc/none", kKept).ok());
}

TEST(LastLevelCache, IsSomeBytes) { EXPECT_GE(last_level_cache_bytes(), 1 << 16); }

}  // namespace
}  // namespace moesaic::cpu
