// The choice of kernels, on any machine: every combination gets a compiled kernel or an error, and the
// choices are the ranges that are written down here.
#include "backend/cuda/ops/select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <vector>

#include "backend/cuda/kernels/common/attention.h"
#include "backend/cuda/kernels/common/gemm.h"
#include "backend/cuda/kernels/common/sample.h"
#include "base/error.h"

namespace moesaic::cuda {
namespace {

constexpr int kMostTokens = 4096;
constexpr Kind kAllKinds[] = {Kind::kBF16,  Kind::kF16,        Kind::kQ8_0,      Kind::kMxfp8,
                              Kind::kMxfp4, Kind::kMxfp4Quads, Kind::kMxfp8Quads};
Target device(int major, int minor, const BackendOptions& options = {}) {
  return target_of(features_of(major, minor, 10 * major + minor), options);
}

struct TokenRange {
  int last;  // the number of tokens that it ends with
  std::string_view name;
};
void expect_ranges(const Target& target, Kind kind, int64_t cols, const std::vector<TokenRange>& ranges) {
  for (int tokens = 1; tokens <= kMostTokens; ++tokens) {
    const auto range =
        std::find_if(ranges.begin(), ranges.end(), [&](TokenRange r) { return tokens <= r.last; });
    ASSERT_NE(range, ranges.end());
    const auto choice =
        select(LinearShape{.kind = kind, .rows = 2880, .cols = cols, .tokens = tokens}, target);
    ASSERT_TRUE(choice.ok()) << choice.status().message();
    ASSERT_EQ(choice.value().config->name, range->name) << kind_name(kind) << " " << cols << " " << tokens;
  }
}

const std::vector<TokenRange> kMmaRanges = {{kMostTokens, "mma"}};
const std::vector<TokenRange> kHopperRanges = {
    {8, "dense_decode 8"}, {16, "dense_decode 16"}, {32, "dense_decode 32"}, {kMostTokens, "wgmma"}};
const std::vector<TokenRange> kWithoutWgmmaRanges = {
    {8, "dense_decode 8"}, {16, "dense_decode 16"}, {32, "dense_decode 32"}, {kMostTokens, "mma"}};
const std::vector<TokenRange> kBlockScaledRanges = {{kMostTokens, "block-scaled"}};

TEST(SelectLinear, OnHopper) {
  const Target hopper = device(9, 0);
  for (const Kind kind : {Kind::kBF16, Kind::kF16, Kind::kQ8_0, Kind::kMxfp8}) {
    for (const int cols : {2880, 4096}) expect_ranges(hopper, kind, cols, kHopperRanges);
    // Too few columns for wgmma, or no multiple of its 64: mma.sync beyond 32 tokens.
    for (const int cols : {96, 416, 480}) expect_ranges(hopper, kind, cols, kWithoutWgmmaRanges);
  }
  expect_ranges(hopper, Kind::kMxfp4, 2880, kMmaRanges);
  for (const Kind kind : {Kind::kMxfp4Quads, Kind::kMxfp8Quads})
    expect_ranges(hopper, kind, 2880, kBlockScaledRanges);
}

// Hopper's kernels for few rows, mma.sync for more: 10.x, and Hopper as if it were one.
TEST(SelectLinear, WithoutWgmma) {
  for (const Target& target : {device(10, 0), device(10, 3), device(11, 0), device(9, 0, {.wgmma = false})}) {
    for (const Kind kind : {Kind::kBF16, Kind::kF16, Kind::kQ8_0, Kind::kMxfp8}) {
      for (const int cols : {96, 2880, 4096}) expect_ranges(target, kind, cols, kWithoutWgmmaRanges);
    }
    expect_ranges(target, Kind::kMxfp4, 2880, kMmaRanges);
  }
}

// Tiles of 64 or 128 tokens have CTAs of 128 rows: they are for products that fill the device with them.
TEST(MmaTile, LeavesNoMultiprocessorsIdle) {
  constexpr int kQkv = 5120, kProjection = 2880, kHead = 201088;
  for (const auto& [rows, tokens, multiprocessors, tile] : {std::array{kQkv, 1, 132, 8},
                                                            {kQkv, 9, 132, 16},
                                                            {kQkv, 17, 132, 32},
                                                            {kQkv, 33, 132, 32},
                                                            {kQkv, 64, 132, 32},
                                                            {kQkv, 64, 82, 64},
                                                            {kQkv, 128, 132, 64},
                                                            {kQkv, 256, 132, 128},
                                                            {kQkv, 2048, 132, 128},
                                                            {kProjection, 64, 132, 32},
                                                            {kProjection, 64, 82, 32},
                                                            {kProjection, 128, 132, 32},
                                                            {kProjection, 192, 132, 64},
                                                            {kProjection, 2048, 132, 128},
                                                            {kHead, 33, 132, 64},
                                                            {kHead, 64, 132, 64},
                                                            {kHead, 96, 132, 128},
                                                            {1, 2048, 0, 32}})
    EXPECT_EQ(mma_tile(rows, tokens, multiprocessors), tile) << rows << " " << tokens;
}

// More columns than shared memory takes: wgmma, and mma.sync for up to 8 tokens.
TEST(SelectLinear, WhereSharedMemoryEnds) {
  const auto name = [](int tokens, int64_t cols) {
    return select(LinearShape{.rows = 64, .cols = cols, .tokens = tokens}, device(9, 0)).value().config->name;
  };
  for (const int tokens : {1, 8, 9, 16, 17, 32}) {
    EXPECT_EQ(name(tokens, 2880).substr(0, 12), "dense_decode") << tokens;
    EXPECT_EQ(name(tokens, 1 << 20), tokens <= 8 ? "mma" : "wgmma") << tokens;
  }
}

TEST(SelectLinear, ElsewhereAndBatchInvariant) {
  const Target targets[] = {device(8, 0),
                            device(8, 9),
                            device(12, 0),
                            device(12, 1),
                            device(10, 0, {.batch_invariant = true}),
                            device(10, 0, {.portable = true}),
                            device(9, 0, {.portable = true}),
                            device(9, 0, {.batch_invariant = true})};
  for (const Target& target : targets) {
    for (const Kind kind : {Kind::kBF16, Kind::kF16, Kind::kQ8_0, Kind::kMxfp8, Kind::kMxfp4}) {
      for (const int cols : {96, 2880}) expect_ranges(target, kind, cols, kMmaRanges);
    }
    if (!target.features.have(kBulkCopies)) continue;
    for (const Kind kind : {Kind::kMxfp4Quads, Kind::kMxfp8Quads})
      expect_ranges(target, kind, 2880, kBlockScaledRanges);
  }
}

TEST(SelectLinear, FusesTheNorm) {
  const auto fuses = [](Kind kind, int64_t cols, int tokens, InputNorm norm) {
    const LinearShape shape{.kind = kind, .rows = 64, .cols = cols, .tokens = tokens, .norm = norm};
    return select(shape, device(9, 0)).value().fuses_norm;
  };
  using enum InputNorm;
  EXPECT_TRUE(fuses(Kind::kBF16, 2880, 8, kNorm));
  EXPECT_TRUE(fuses(Kind::kQ8_0, 4096, 1, kNorm));
  EXPECT_FALSE(fuses(Kind::kBF16, 2880, 8, kNone));
  EXPECT_FALSE(fuses(Kind::kBF16, 2880, 8, kDeferred));
  EXPECT_FALSE(fuses(Kind::kBF16, 2880, 9, kNorm));
  EXPECT_FALSE(fuses(Kind::kBF16, 4160, 8, kNorm));
  EXPECT_FALSE(fuses(Kind::kMxfp4, 2880, 8, kNorm));
  for (const int tokens : {1, 8, 9, 4096}) {
    EXPECT_TRUE(fuses(Kind::kMxfp8Quads, 2880, tokens, kNorm));
    EXPECT_TRUE(fuses(Kind::kMxfp4Quads, 2880, tokens, kDeferred));
  }
}

// Whatever is chosen is compiled for it, and what is not is an error that says what was asked for.
TEST(SelectLinear, ACompiledKernelOrAnError) {
  std::set<std::string_view> names;
  for (const LinearConfig& c : linear_configs()) EXPECT_TRUE(names.insert(c.name).second) << c.name;
  for (const auto& [major, minor] : {std::pair{8, 0}, {9, 0}, {12, 0}, {12, 1}}) {
    for (const Kind kind : kAllKinds) {
      for (int64_t cols = 0; cols <= 8192; cols += 16) {
        for (const int tokens : {0, 1, 8, 9, 33, 600}) {
          const LinearShape shape{.kind = kind, .rows = 64, .cols = cols, .tokens = tokens};
          const auto choice = select(shape, device(major, minor));
          if (!choice.ok()) {
            EXPECT_TRUE(cols % 32 != 0 || cols == 0 || tokens == 0 || (major == 8 && in_quads(kind)))
                << choice.status().message();
            for (const std::string& word :
                 {std::string("linear"), std::string(kind_name(kind)), fmt::format("64 x {}", cols),
                  fmt::format("{} tokens", tokens), fmt::format("{}.{}", major, minor)})
              EXPECT_NE(choice.status().message().find(word), std::string::npos) << choice.status().message();
            continue;
          }
          const LinearConfig& c = *choice.value().config;
          EXPECT_EQ(in_quads(kind), c.kernel == LinearKernel::kBlockScaled);
          EXPECT_TRUE(device(major, minor).features.have(c.needs)) << c.name;
        }
      }
    }
  }
}

// The launchers cut tokens into the tiles that the table names.
TEST(SelectAttention, ByDevice) {
  const auto name = [](bool decode, const Target& target) -> std::string_view {
    const auto config = select(AttentionShape{.decode = decode, .head_dim = 64, .group = 8}, target);
    return config.ok() ? config.value()->name : "error";
  };
  EXPECT_EQ(name(true, device(9, 0)), "attention_decode");
  EXPECT_EQ(name(false, device(9, 0)), "attention_prefill");
  EXPECT_EQ(name(false, device(9, 0, {.batch_invariant = true})), "attention_prefill");
  EXPECT_EQ(name(true, device(9, 0, {.batch_invariant = true})), "error");
  for (const Target& target : {device(10, 0), device(10, 3), device(9, 0, {.wgmma = false})}) {
    EXPECT_EQ(name(true, target), "attention_decode");
    EXPECT_EQ(name(false, target), "attention_portable");
  }
  for (const Target& target : {device(8, 0), device(8, 6), device(9, 0, {.portable = true}),
                               device(10, 0, {.batch_invariant = true}), device(12, 0), device(12, 1)}) {
    EXPECT_EQ(name(false, target), "attention_portable");
    EXPECT_EQ(name(true, target), "error");  // a step's single rows are tiles there
  }
  for (const AttentionShape& shape : {AttentionShape{.head_dim = 80}, AttentionShape{.group = 17}}) {
    const auto config = select(shape, device(9, 0));
    ASSERT_FALSE(config.ok());
    EXPECT_NE(config.status().message().find("attention"), std::string::npos);
  }
}

TEST(SelectExperts, ByModelAndDevice) {
  const ExpertsShape oss{.mxfp4 = true,
                         .sizes = {.top_k = 4, .experts = 128, .hidden = 2880, .intermediate = 2880},
                         .swiglu_alpha = 1.702,
                         .swiglu_limit = 7.0};
  const auto name = [](const ExpertsShape& shape, const Target& target) -> std::string_view {
    const auto config = select(shape, target);
    return config.ok() ? config.value()->name : "error";
  };
  EXPECT_EQ(name(oss, device(9, 0)), "slabs");
  EXPECT_EQ(name(oss, device(9, 0, {.moe_path = MoePath::kW4A8})), "quads");
  EXPECT_EQ(name(oss, device(9, 0, {.moe_path = MoePath::kFp8})), "slabs, rows in FP8");
  EXPECT_EQ(name(oss, device(9, 0, {.moe_path = MoePath::kFp8, .batch_invariant = true})), "weight tiles");
  EXPECT_EQ(name(oss, device(9, 0, {.batch_invariant = true})), "weight tiles");
  constexpr std::string_view kFp8Tiles = "weight tiles, rows in FP8";
  EXPECT_EQ(name(oss, device(9, 0, {.moe_path = MoePath::kFp8, .portable = true})), kFp8Tiles);
  EXPECT_EQ(name(oss, device(8, 9, {.moe_path = MoePath::kFp8})), kFp8Tiles);
  for (const int minor : {0, 6, 7})
    EXPECT_EQ(name(oss, device(8, minor, {.moe_path = MoePath::kFp8})), "weight tiles");
  for (const int minor : {0, 6, 9}) EXPECT_EQ(name(oss, device(8, minor)), "weight tiles");
  EXPECT_EQ(name(oss, device(10, 0)), "slabs");
  EXPECT_EQ(name(oss, device(9, 0, {.wgmma = false})), "slabs");
  EXPECT_EQ(name(oss, device(10, 0, {.batch_invariant = true})), "weight tiles");
  for (const int minor : {0, 1}) {
    EXPECT_EQ(name(oss, device(12, minor)), "weight tiles");
    for (const MoePath path : {MoePath::kW4A8, MoePath::kW4A8x2})
      EXPECT_EQ(name(oss, device(12, minor, {.moe_path = path})), "quads");
  }
  ExpertsShape other = oss;
  other.sizes.hidden = 2048;
  EXPECT_EQ(name(other, device(9, 0)), "weight tiles");
  EXPECT_EQ(name(other, device(12, 0, {.moe_path = MoePath::kW4A8})), "quads");
  EXPECT_EQ(name(other, device(9, 0, {.moe_path = MoePath::kFp8})), "weight tiles");
  EXPECT_EQ(name(other, device(8, 9, {.moe_path = MoePath::kFp8})), kFp8Tiles);
  other.sizes.intermediate = 2080;  // no multiple of 64
  EXPECT_EQ(name(other, device(8, 9, {.moe_path = MoePath::kFp8})), "weight tiles");
  other = oss, other.swiglu_limit = 8;
  EXPECT_EQ(name(other, device(9, 0)), "weight tiles");
  EXPECT_EQ(name(other, device(8, 9, {.moe_path = MoePath::kFp8})), "weight tiles");
  other = oss, other.mxfp4 = false;
  for (const int major : {9, 12}) {
    for (const MoePath path : {MoePath::kAuto, MoePath::kW4A8})
      EXPECT_EQ(name(other, device(major, 0, {.moe_path = path})), "weight tiles");
  }
  other = oss, other.sizes.experts = 1025;
  ASSERT_EQ(name(other, device(9, 0)), "error");
  EXPECT_NE(select(other, device(9, 0)).status().message().find("4 of 1025 experts"), std::string::npos);
}

TEST(SelectRouter, ByRows) {
  const auto name = [](RouterShape shape) { return select(shape, device(9, 0)).value()->name; };
  for (int rows = 1; rows <= kMostTokens; ++rows) {
    RouterShape shape{.rows = rows, .hidden = 2880, .experts = 128, .top_k = 4};
    ASSERT_EQ(name(shape), rows <= 8 ? "choose" : "norm, router") << rows;
    shape.scores_only = true;
    ASSERT_EQ(name(shape), "norm, router") << rows;
    shape.slabs = true;
    ASSERT_EQ(name(shape), rows <= 256 ? "score" : "norm, router") << rows;
    shape.scores_only = false;
    ASSERT_EQ(name(shape), rows <= 256 ? "score" : "norm, router") << rows;
  }
  const RouterShape decode{.rows = 8, .hidden = 3072, .experts = 128, .top_k = 4};
  EXPECT_EQ(name(decode), "choose");
  for (auto wrong : {&RouterShape::hidden, &RouterShape::experts, &RouterShape::top_k}) {
    RouterShape more = decode;
    more.*wrong += 1;
    EXPECT_EQ(name(more), "norm, router");
  }
  EXPECT_FALSE(select(RouterShape{}, device(9, 0)).ok());
}

TEST(SelectSample, InClustersWhereThereAreSome) {
  const auto ctas = [](int vocab, const Target& target) {
    const auto config = select(SampleShape{vocab}, target);
    return config.ok() ? config.value()->ctas : 0;
  };
  for (const int major : {9, 10, 12}) EXPECT_EQ(ctas(201088, device(major, 0)), kSampleCluster);
  EXPECT_EQ(ctas(1 << 18, device(9, 0, {.portable = true})), kSampleCluster);
  for (const int minor : {0, 6, 9}) EXPECT_EQ(ctas(1 << 18, device(8, minor)), 1);
  EXPECT_EQ(ctas((1 << 18) + 1, device(9, 0)), 0);
  Target without = device(12, 0);
  without.features.has &= ~unsigned{kClusters};
  EXPECT_EQ(ctas(201088, without), 1);
}

// Every architecture that code can be built for has a kernel for every operation of a model, the device has
// what the kernel needs, and its shared memory fits.
TEST(SelectAll, EveryArchitectureHasAKernelThatFits) {
  const auto fits = [](const Target& target, const auto& config) {
    EXPECT_TRUE(target.features.have(config.needs)) << config.name;
  };
  for (const auto& [major, minor] :
       {std::pair{8, 0}, {8, 6}, {8, 7}, {8, 9}, {9, 0}, {10, 0}, {10, 3}, {11, 0}, {12, 0}, {12, 1}}) {
    for (const BackendOptions& options :
         {BackendOptions{}, {.portable = true}, {.wgmma = false}, {.batch_invariant = true}}) {
      const Target target = device(major, minor, options);
      SCOPED_TRACE(fmt::format("{}.{}, portable {}, batch-invariant {}", major, minor, options.portable,
                               options.batch_invariant));
      const auto in_block = static_cast<int64_t>(target.features.shared_per_block);
      for (const Kind kind : {Kind::kBF16, Kind::kF16, Kind::kQ8_0, Kind::kMxfp8, Kind::kMxfp4}) {
        for (const int tokens : {1, 8, 9, 32, 33, 64, 65, 2048}) {
          const auto choice =
              select(LinearShape{.kind = kind, .rows = 2880, .cols = 4096, .tokens = tokens}, target);
          ASSERT_TRUE(choice.ok()) << choice.status().message();
          fits(target, *choice.value().config);
          if (choice.value().config->kernel == LinearKernel::kMma) {
            EXPECT_LE(gemm_shared_bytes(mma_tile(2880, tokens, 132)), in_block);
          }
        }
      }
      for (const int head_dim : {32, 64, 128}) {
        for (const bool decode : {false, true}) {
          if (decode && target.batch_invariant) continue;  // single rows are tiles there
          const auto attention =
              select(AttentionShape{.decode = decode, .head_dim = head_dim, .group = 8}, target);
          ASSERT_TRUE(attention.ok()) << attention.status().message();
          fits(target, *attention.value());
          if (attention.value()->kernel == AttentionKernel::kPortable) {
            EXPECT_LE(portable_shared_bytes(head_dim, false), in_block);
          }
        }
      }
      for (const bool mxfp4 : {true, false}) {
        const auto experts =
            select(ExpertsShape{.mxfp4 = mxfp4,
                                .sizes = {.top_k = 4, .experts = 32, .hidden = 2880, .intermediate = 2880},
                                .swiglu_alpha = 1.702,
                                .swiglu_limit = 7.0},
                   target);
        ASSERT_TRUE(experts.ok()) << experts.status().message();
        fits(target, *experts.value());
      }
      EXPECT_TRUE(select(RouterShape{.rows = 1, .hidden = 2880, .experts = 128, .top_k = 4}, target).ok());
      const auto sampling = select(SampleShape{201088}, target);
      ASSERT_TRUE(sampling.ok()) << sampling.status().message();
      fits(target, *sampling.value());
    }
  }
}

TEST(MoePath, IsRefusedWhereTheDeviceLacksIt) {
  const auto refusal = [](MoePath path, int major, int minor, int code) {
    const Status status = check_moe_path(features_of(major, minor, code), {.moe_path = path}, "RTX");
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kUnsupported);
    return status.message();
  };
  for (const auto& [major, minor] : {std::pair{8, 0}, {8, 6}, {8, 7}, {10, 0}, {10, 3}, {12, 0}, {12, 1}}) {
    const std::string message = refusal(MoePath::kFp8, major, minor, 10 * major + minor);
    EXPECT_EQ(message, fmt::format("device cuda:0: --moe-path fp8 needs compute capability 8.9 (Ada) or 9.0 "
                                   "(Hopper) and code for it, RTX is {}.{}; leave it out",
                                   major, minor));
  }
  for (const int minor : {0, 6, 7, 9}) {
    for (const MoePath path : {MoePath::kW4A8, MoePath::kW4A8x2})
      EXPECT_NE(refusal(path, 8, minor, 80 + minor), "");
  }
  // PTX of 8.0 on cards that have more.
  EXPECT_NE(refusal(MoePath::kFp8, 8, 9, 80), "");
  for (const MoePath path : {MoePath::kFp8, MoePath::kW4A8}) EXPECT_NE(refusal(path, 9, 0, 80), "");

  EXPECT_EQ(refusal(MoePath::kFp8, 8, 9, 89), "");
  EXPECT_EQ(refusal(MoePath::kFp8, 9, 0, 90), "");
  for (const int major : {9, 10, 12}) {
    for (const MoePath path : {MoePath::kW4A8, MoePath::kW4A8x2})
      EXPECT_EQ(refusal(path, major, 0, 10 * major), "");
  }
  for (const int minor : {0, 6, 9}) EXPECT_EQ(refusal(MoePath::kAuto, 8, minor, 80 + minor), "");
}

// Few rows would run in F16 from slabs, many have no kernel in FP8.
TEST(MoePath, InFp8NeedsWgmmaOrThePortableKernels) {
  const auto refusal = [](int major, int minor, BackendOptions options) {
    options.moe_path = MoePath::kFp8;
    return check_moe_path(features_of(major, minor, 10 * major + minor), options, "GPU").message();
  };
  EXPECT_NE(refusal(9, 0, {.wgmma = false}).find("needs wgmma"), std::string::npos);
  EXPECT_NE(refusal(11, 0, {}).find("needs wgmma"), std::string::npos);
  for (const int major : {9, 11}) EXPECT_EQ(refusal(major, 0, {.portable = true, .wgmma = false}), "");
  EXPECT_EQ(refusal(8, 9, {.wgmma = false}), "");
}

TEST(Target, IsWhatOptionsMeanOnADevice) {
  const Target hopper = device(9, 0), sm120 = device(12, 0), ampere = device(8, 0);
  EXPECT_FALSE(hopper.portable || hopper.batch_invariant);
  EXPECT_EQ(hopper.moe_path, MoePath::kAuto);
  EXPECT_TRUE(sm120.portable && sm120.batch_invariant);
  EXPECT_EQ(sm120.moe_path, MoePath::kAuto);
  EXPECT_EQ(device(9, 0, {.moe_path = MoePath::kW4A8}).moe_path, MoePath::kW4A8);
  EXPECT_TRUE(device(9, 0, {.portable = true}).batch_invariant);
  for (const Target& target : {device(10, 0), device(9, 0, {.wgmma = false})})
    EXPECT_FALSE(target.portable || target.batch_invariant || target.features.have(kWgmma));
  EXPECT_TRUE(ampere.portable && ampere.batch_invariant);
  EXPECT_EQ(ampere.moe_path, MoePath::kAuto);
  // PTX of 8.0 that the driver has compiled for Hopper: as on Ampere.
  const Target compiled = target_of(features_of(9, 0, 80), {});
  EXPECT_TRUE(compiled.portable && compiled.batch_invariant);
  EXPECT_EQ(select(SampleShape{100}, compiled).value()->ctas, 1);
}

}  // namespace
}  // namespace moesaic::cuda
