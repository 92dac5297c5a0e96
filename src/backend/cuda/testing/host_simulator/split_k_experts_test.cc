// Both products of the experts for some tokens on the host, with the work tiles that they make from the
// router's logits, and with work tiles that were made before.
#include "backend/cuda/kernels/sm90/gemm_split_k.cu"
#include "backend/cuda/testing/host_simulator/experts.h"

namespace moesaic::cuda::sm90 {
namespace {

alignas(128) thread_local uint8_t split_k_shared[sizeof(SplitKShared)];  // the kernel's

template <bool kDown>
void run(const SplitKParams& p) {
  ASSERT_TRUE(on_host::run_in_turn(p.layout.sms, kSplitKThreads<kDown>, split_k_shared,
                                   [&] { gemm_split_k_kernel<kDown>(p); }));
}

// Inputs, and rooms for outputs.
struct Rows {
  std::vector<__half> x, h;
  std::vector<float> y;
  int sms = kFullSms;
  Rows(int rows, int permuted_rows)
      : x(static_cast<size_t>(rows) * kHidden),
        h(static_cast<size_t>(permuted_rows) * kHidden),
        y(static_cast<size_t>(permuted_rows) * kHidden) {
    std::mt19937 rng(7);
    std::normal_distribution<float> normal;
    for (__half& v : x) v = __float2half_rn(normal(rng));
  }
  void multiply(Activations up, const SplitKRoute& route) {
    up.x = x.data(), up.tile = kSplitKTokens;
    Activations down = up;
    run<false>({.weights = experts(sms).fc1.data(),
                .layout = slab_layout(sms),
                .x = up,
                .out = h.data(),
                .stride = kHidden,
                .route = route});
    down.x = h.data(), down.rows = nullptr, down.factor = 1.0f / kHScale;
    run<true>({.weights = experts(sms).fc2.data(),
               .layout = slab_layout(sms),
               .x = down,
               .out = y.data(),
               .stride = kHidden,
               .route = route});
  }
  void compare(int expert, int row, int permuted_row, Errors& errors) const {
    const auto row_of = [](const std::vector<__half>& all, int at) {
      return [from = &all[static_cast<size_t>(at) * kHidden]](int i) { return from[i]; };
    };
    errors.add(expert, row_of(x, row), row_of(h, permuted_row),
               &y[static_cast<size_t>(permuted_row) * kHidden]);
  }
};

TEST(SplitKExperts, ChooseExpertsAndMultiply) {
  ASSERT_EQ(experts().fault, 0);
  constexpr int kRows = 13, kChosen = 2, kPairs = kRows * kChosen;
  Rows rows(kRows, kPairs);
  std::vector<float> logits, weights(kPairs);
  for (int row = 0; row < kRows; ++row) {  // expert 0 for all, 1 for three
    for (const float logit :
         {2.0f + 0.1f * static_cast<float>(row), row % 5 == 0 ? 1.0f : -1.0f, 0.5f, -2.0f, -3.0f})
      logits.push_back(logit);
  }
  std::vector<int32_t> permuted_rows(kPairs, -1), source_rows(kPairs, -1);
  std::vector<WorkTile> work_tiles(kPairs);
  int work_tile_count = 0, made = 0;
  const Route route{.logits = logits.data(),
                    .rows = kRows,
                    .experts = kExperts,
                    .top_k = kChosen,
                    .tile = kSplitKTokens,
                    .weights = weights.data(),
                    .permuted_rows = permuted_rows.data(),
                    .source_rows = source_rows.data(),
                    .work_tiles = work_tiles.data(),
                    .work_tile_count = &work_tile_count};
  ASSERT_TRUE(split_k_routes(route));
  rows.multiply({.rows = source_rows.data(),
                 .tokens = kPairs,
                 .work_tiles = work_tiles.data(),
                 .work_tile_count = &work_tile_count},
                {.route = route, .made = &made});
  EXPECT_EQ(made, 0);
  EXPECT_EQ(work_tile_count, 3);
  Errors errors;
  for (int row = 0; row < kRows; ++row) {
    const int second = row % 5 == 0 ? 1 : 2;
    const double likelier = 1 / (1 + std::exp(logits[kExperts * row + second] - logits[kExperts * row]));
    EXPECT_NEAR(weights[kChosen * row], likelier, 1e-6);
    EXPECT_NEAR(weights[kChosen * row + 1], 1 - likelier, 1e-6);
    if (row % 4 != 0) continue;
    rows.compare(0, row, permuted_rows[kChosen * row], errors);
    rows.compare(second, row, permuted_rows[kChosen * row + 1], errors);
  }
  errors.check();
}

// Somebody else has set `made` back, as on scratch memory that two streams share: the second product ends,
// writes nothing and says so.
TEST(SplitKExperts, GiveUpWhereNobodyMakesTheList) {
  Rows rows(1, 2);
  int made = 0, work_tile_count = 1 << 30, fault = 0;
  std::vector<WorkTile> work_tiles(2, {1 << 30, 1 << 30, 1 << 30, 1 << 30});
  const Route route{.rows = 1,
                    .experts = kExperts,
                    .top_k = 2,
                    .tile = kSplitKTokens,
                    .work_tiles = work_tiles.data(),
                    .work_tile_count = &work_tile_count};
  rows.y[0] = -1;
  run<true>({.weights = experts().fc2.data(),
             .layout = slab_layout(kFullSms),
             .x = {.x = rows.h.data(),
                   .tokens = 2,
                   .work_tiles = work_tiles.data(),
                   .work_tile_count = &work_tile_count,
                   .tile = kSplitKTokens},
             .out = rows.y.data(),
             .stride = kHidden,
             .route = {.route = route, .made = &made, .fault = &fault}});
  EXPECT_EQ(fault, kGaveUp);
  EXPECT_EQ(rows.y[0], -1);
}

class SplitKExpertsOnSms : public testing::TestWithParam<int> {};
TEST_P(SplitKExpertsOnSms, MultiplyByGivenWorkTiles) {
  ASSERT_EQ(experts().fault, 0);
  const std::vector<WorkTile> work_tiles = {{0, 0, 16, 0}, {0, 16, 5, 16}, {2, 21, 1, 24}};
  const int work_tile_count = static_cast<int>(work_tiles.size()), permuted_rows = 22;
  std::vector<int32_t> source_rows;
  for (int permuted_row = 0; permuted_row < permuted_rows; ++permuted_row)
    source_rows.push_back((permuted_row * 5 + 3) % permuted_rows);
  Rows rows(permuted_rows, permuted_rows);
  rows.sms = GetParam();
  rows.multiply({.rows = source_rows.data(),
                 .tokens = work_tile_count,
                 .work_tiles = work_tiles.data(),
                 .work_tile_count = &work_tile_count},
                {});
  Errors errors;
  for (const WorkTile& work_tile : work_tiles) {
    for (const int token : {0, work_tile.count / 2, work_tile.count - 1})
      rows.compare(work_tile.expert, source_rows[work_tile.first + token], work_tile.first + token, errors);
  }
  errors.check();
}

INSTANTIATE_TEST_SUITE_P(Sms, SplitKExpertsOnSms, testing::Values(kFullSms, 114, 78, 17),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace moesaic::cuda::sm90
