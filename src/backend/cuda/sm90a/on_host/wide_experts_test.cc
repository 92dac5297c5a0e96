// Both products of the experts for many tokens, from the slabs that the loader packs, on the host: see
// thread_block.h.
#include <gtest/gtest.h>

#include <ostream>
#include <random>

#include "backend/cuda/sm90a/gemm_wide.cuh"
#include "backend/cuda/sm90a/on_host/experts.h"

namespace moesaic::cuda::sm90a {

alignas(1024) uint8_t wide_shared[kSharedLimit];  // the kernel's

namespace {

// Activations as gemm_wide.h's Tiles has them.
struct Placed {
  std::vector<__half> values;
  Tiles tiles;
  Placed(const std::vector<Job>& jobs, const int* count, int tile)
      : values(static_cast<size_t>(jobs.back().start + tile_width(jobs.back().count)) * kHidden,
               __half(__half_raw{.x = 0x7E00})),  // NaN
        tiles{.data = values.data(),
              .cols = kHidden,
              .jobs = jobs.data(),
              .job_count = count,
              .most_jobs = *count,
              .tile = tile} {}
  __half& at(const Job& job, int token, int column) {
    const int in_block = column % 32, chunk = column / 32 % 2 * 4 + in_block % 8 / 2;
    const int64_t row = int64_t{column / 64} * tile_width(job.count) + token;
    return values[int64_t{job.start} * kHidden + row * 64 + chunk_place(chunk, token) * 8 + in_block / 8 * 2 +
                  column % 2];
  }
};

template <class Weights, int kTile, class Epilogue>
void run_tile(const WideParams& p, const Epilogue& out, unsigned blocks) {
  ASSERT_TRUE(on_host::run_in_turn(blocks, kWideThreads, wide_shared,
                                   [&] { wide_kernel<Weights, kTile, Epilogue>(p, out); }));
}
template <class Weights, class Epilogue>
void run(const uint8_t* weights, const Tiles& x, int rows, float factor, const Epilogue& out,
         unsigned blocks) {
  const WideParams p{.weights = weights,
                     .x = x,
                     .row_tiles = rows / kTileRows,
                     .units = rows / kUnit,
                     .stages = kBlocks / kBlocksPerWarp,
                     .factor = factor};
  if (x.tile == 32) run_tile<Weights, 32>(p, out, blocks);
  if (x.tile == 64) run_tile<Weights, 64>(p, out, blocks);
  if (x.tile == 128) run_tile<Weights, 128>(p, out, blocks);
}

struct Case {
  int tile;
  std::vector<Job> jobs;
  unsigned blocks;  // of the grid, fewer than the device has: each has many tiles
};
void PrintTo(const Case& c, std::ostream* out) { *out << "tiles of " << c.tile; }
class WideExperts : public testing::TestWithParam<Case> {};

TEST_P(WideExperts, MultiplyBySlabs) {
  ASSERT_EQ(experts().fault, 0);
  const auto& [tile, jobs, blocks] = GetParam();
  const int count = static_cast<int>(jobs.size()), tokens = jobs.back().first + jobs.back().count;
  Placed x(jobs, &count, tile), h(jobs, &count, tile);
  std::mt19937 rng(7);
  std::normal_distribution<float> normal;
  for (const Job& job : jobs) {
    for (int token = 0; token < job.count; ++token) {
      for (int column = 0; column < kHidden; ++column)
        x.at(job, token, column) = __float2half_rn(normal(rng));
    }
  }
  run<SlabWeights<false>>(experts().fc1.data(), x.tiles, 2 * kHidden, 1.0f,
                          WideSwiGlu{.out = static_cast<uint8_t*>(h.tiles.data),
                                     .gate_bias = experts().bias[kGatePart].data(),
                                     .up_bias = experts().bias[kUpPart].data()},
                          blocks);
  std::vector<float> y(static_cast<size_t>(tokens) * kHidden);
  run<SlabWeights<true>>(
      experts().fc2.data(), h.tiles, kHidden, 1.0f / kHScale,
      Store{.out = y.data(), .stride = kHidden, .bias = experts().bias[kDownPart].data(), .rows = kHidden},
      blocks);
  Errors errors;
  for (const Job& job : jobs) {
    for (const int token : {0, job.count / 2, job.count - 1}) {
      std::vector<float> in(kHidden), hidden(kHidden);
      for (int i = 0; i < kHidden; ++i) {
        in[i] = __half2float(x.at(job, token, i));
        hidden[i] = __half2float(h.at(job, token, i)) / kHScale;
      }
      errors.add(job.expert, in, hidden, &y[static_cast<size_t>(job.first + token) * kHidden]);
    }
  }
  errors.check();
}

// Full tiles, which keep products running from stage to stage, and every kind of width; an expert without
// tokens.
INSTANTIATE_TEST_SUITE_P(Tiles, WideExperts,
                         testing::Values(Case{32, {{0, 0, 30, 0}, {2, 30, 8, 32}}, 7},
                                         Case{64, {{0, 0, 61, 0}, {1, 61, 40, 64}}, 132},
                                         Case{
                                             128, {{0, 0, 128, 0}, {0, 128, 97, 128}, {2, 225, 9, 240}}, 20}),
                         [](const auto& test) { return std::to_string(test.param.tile); });

}  // namespace
}  // namespace moesaic::cuda::sm90a
