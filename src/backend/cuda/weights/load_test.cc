// Loading counts the memory that it takes: no device is needed.
#include "backend/cuda/weights/load.h"

#include <gtest/gtest.h>

#include <map>

#include "backend/cuda/layout/slab_layout.h"

namespace moesaic::cuda {
namespace {

// The published sizes; views without bytes, which counting does not read.
ModelWeights shapes(const ModelConfig& c) {
  const auto bf16 = [](int64_t rows, int64_t cols) { return dense_view(Format::kBF16, rows, cols, nullptr); };
  const auto floats = [](int64_t rows, int64_t cols) {
    return dense_view(Format::kF32, rows, cols, nullptr);
  };
  const auto experts = [&](int64_t rows, int64_t cols) {
    static constexpr std::byte kSome[1] = {};
    return ExpertsView{.first = dense_view(Format::kMxfp4, rows, cols, kSome, kSome), .count = c.experts};
  };
  ModelWeights w{
      .embed = bf16(c.vocab, c.hidden), .final_norm = floats(1, c.hidden), .head = bf16(c.vocab, c.hidden)};
  w.layers.resize(c.layers);
  for (LayerWeights& l : w.layers) {
    l = {.attn_norm = floats(1, c.hidden), .q = bf16(c.q_size(), c.hidden), .k = bf16(c.kv_size(), c.hidden)};
    l.v = l.k, l.o = bf16(c.hidden, c.q_size()), l.mlp_norm = l.attn_norm;
    l.q_bias = floats(1, c.q_size()), l.k_bias = l.v_bias = floats(1, c.kv_size()), l.o_bias = l.attn_norm;
    l.sinks = floats(1, c.heads), l.router = floats(c.experts, c.hidden),
    l.router_bias = floats(1, c.experts);
    l.gate = l.up = experts(c.intermediate, c.hidden), l.down = experts(c.hidden, c.intermediate);
    l.gate_bias = l.up_bias = floats(c.experts, c.intermediate), l.down_bias = floats(c.experts, c.hidden);
  }
  return w;
}

std::map<std::string, double> count(const char* name, bool slabs, std::optional<Format> dense = std::nullopt,
                                    int host_layers = 0) {
  const ModelConfig config = published_config(name).value();
  std::map<std::string, double> parts;
  for (const MemoryPart& p :
       count_model(config, shapes(config), {.dense = dense}, {.slabs = slabs}, host_layers))
    parts[p.name] = p.bytes;
  return parts;
}

TEST(CountModel, TakesWhatTheFormatsTake) {
  const auto parts = count("gpt-oss-120b", false);
  // Codes and scales have buffers of their own.
  const size_t matrix = 2880 * 2880, embedding = size_t{201088} * 2880, qkv = 2880 * (4096 + 2 * 512),
               output = 2880 * 4096;
  const auto experts = [](size_t values) { return page_bytes(values / 2) + page_bytes(values / 32); };
  EXPECT_DOUBLE_EQ(parts.at(kExpertsPart), 36 * (experts(128 * 2 * matrix) + experts(128 * matrix)));
  EXPECT_DOUBLE_EQ(parts.at(kEmbeddingPart), page_bytes(embedding * 2));
  EXPECT_DOUBLE_EQ(parts.at(kHeadPart), page_bytes(embedding * 2));
  EXPECT_DOUBLE_EQ(parts.at(kProjectionsPart), 36 * (page_bytes(qkv * 2) + page_bytes(output * 2)));
  const auto narrow = count("gpt-oss-120b", false, Format::kMxfp8);
  // With each row's largest scale.
  EXPECT_DOUBLE_EQ(narrow.at(kHeadPart),
                   page_bytes(embedding) + page_bytes(embedding / 32) + page_bytes(201088));
}

TEST(CountModel, LargeBuffersTakeWholePages) {
  EXPECT_EQ(page_bytes(0), 0);
  EXPECT_EQ(page_bytes(1000), 1000);
  EXPECT_EQ(page_bytes((1u << 20) - 1), (1u << 20) - 1);
  EXPECT_EQ(page_bytes(1u << 20), 2u << 20);
  EXPECT_EQ(page_bytes((2u << 20) + 1), 4u << 20);
}

TEST(CountModel, LeavesOutTheExpertsOfTheHost) {
  const auto all = count("gpt-oss-20b", true), some = count("gpt-oss-20b", true, std::nullopt, 6),
             none = count("gpt-oss-20b", true, std::nullopt, 24);
  EXPECT_NEAR(some.at(kExpertsPart), 0.75 * all.at(kExpertsPart), 0.01 * all.at(kExpertsPart));
  EXPECT_LT(none.contains(kExpertsPart) ? none.at(kExpertsPart) : 0.0, 0.01 * all.at(kExpertsPart));
  EXPECT_EQ(some.at(kHeadPart), all.at(kHeadPart));
  EXPECT_EQ(some.at(kProjectionsPart), all.at(kProjectionsPart));
}

TEST(CountModel, SlabsTakeThePlaceOfTheGeneralOrder) {
  const double experts = 24.0 * 32 * (slabs::kFc1Bytes + slabs::kFc2Bytes);
  EXPECT_NEAR(count("gpt-oss-20b", true).at(kExpertsPart), experts, 0.005 * experts);
  EXPECT_NEAR(count("gpt-oss-20b", false).at(kExpertsPart), experts, 0.005 * experts);
}

}  // namespace
}  // namespace moesaic::cuda
