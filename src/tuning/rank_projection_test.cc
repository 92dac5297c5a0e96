#include "tuning/rank_projection.h"

#include <gtest/gtest.h>

namespace moesaic {
namespace {

constexpr double kH100 = 3.35e12, kH200 = 4.8e12;

// With dense matrices in BF16, as they were measured: QKV and output projection of a layer 5,120 and 4,096
// rows or columns of 2,880, lm_head 201,088 rows; an expert 3 * 2,880^2 elements of 4.25 bits.
DecodeBytes bytes_of(const ModelConfig& c) {
  return {.dense = 2.0 * (c.layers * (5120.0 + 4096) * 2880 + 201088.0 * 2880), .expert = 13219200};
}

struct Measured {
  const char* model;
  double bytes_per_second;
  int ranks, sequences;
  double tokens_per_second;
};
// docs/lab/2026-11-27-ranks-on-gpus.md
constexpr Measured kMeasured[] = {
    {"gpt-oss-20b", kH100, 1, 1, 717},      {"gpt-oss-20b", kH100, 1, 64, 10966},
    {"gpt-oss-20b", kH100, 2, 1, 980},      {"gpt-oss-20b", kH100, 2, 8, 3533},
    {"gpt-oss-20b", kH100, 2, 256, 35183},  {"gpt-oss-120b", kH100, 1, 1, 518.5},
    {"gpt-oss-120b", kH100, 1, 128, 5404},  {"gpt-oss-120b", kH100, 2, 1, 693.6},
    {"gpt-oss-120b", kH100, 2, 64, 5292},   {"gpt-oss-120b", kH100, 2, 256, 13115},
    {"gpt-oss-20b", kH200, 4, 1, 1485},     {"gpt-oss-20b", kH200, 4, 64, 19097},
    {"gpt-oss-120b", kH200, 2, 256, 12591}, {"gpt-oss-120b", kH200, 4, 8, 3163},
};

TEST(RankProjection, IsNearWhatWasMeasured) {
  for (const Measured& m : kMeasured) {
    const ModelConfig config = published_config(m.model).value();
    const double projected =
        m.sequences / decode_seconds(config, bytes_of(config), m.bytes_per_second, m.ranks, m.sequences);
    EXPECT_NEAR(projected / m.tokens_per_second, 1, 0.32) << m.model << " " << m.ranks << " " << m.sequences;
  }
}

// Two ranks answer one request sooner. At 256 sequences two of the 120b, which share the reading of its
// experts, are faster than two replicas, and two of the 20b are not.
TEST(RankProjection, RanksAgainstReplicas) {
  const auto gain = [](const char* model, int sequences) {
    const ModelConfig config = published_config(model).value();
    const RanksAndReplicas both = ranks_and_replicas(config, bytes_of(config), kH100, 2, sequences);
    return both.ranks / both.replicas;
  };
  EXPECT_GT(gain("gpt-oss-20b", 1), 1.2);
  EXPECT_GT(gain("gpt-oss-120b", 256), 1.1);
  EXPECT_LT(gain("gpt-oss-20b", 256), 1);
}

// Sequences are dealt evenly: 3 to two replicas are 1 and 2, and a replica without any adds nothing.
TEST(RankProjection, ReplicasShareTheSequences) {
  const ModelConfig c = published_config("gpt-oss-20b").value();
  const auto alone = [&](int sequences) {
    return sequences / decode_seconds(c, bytes_of(c), kH100, 1, sequences);
  };
  EXPECT_DOUBLE_EQ(ranks_and_replicas(c, bytes_of(c), kH100, 2, 3).replicas, alone(1) + alone(2));
  EXPECT_DOUBLE_EQ(ranks_and_replicas(c, bytes_of(c), kH100, 4, 1).replicas, alone(1));
}

// The slowest of 3 ranks has 3 of 8 KV heads.
TEST(RankProjection, TheSlowestRankCounts) {
  const ModelConfig c = published_config("gpt-oss-20b").value();
  const DecodeBytes none, all = bytes_of(c);
  const auto of_bytes = [&](int ranks) {
    return decode_seconds(c, all, 1e6, ranks, 1) - decode_seconds(c, none, 1e6, ranks, 1);
  };
  EXPECT_NEAR(of_bytes(3) / of_bytes(1), 3.0 / 8, 1e-9);
}

}  // namespace
}  // namespace moesaic
