// Both products of the experts for some tokens on the host, with the jobs that they make from the router's
// logits, and with jobs that were made before.
#include "backend/cuda/kernels/sm90/gemm_split_k.cu"
#include "backend/cuda/testing/host_simulator/experts.h"

namespace moesaic::cuda::sm90a {
namespace {

alignas(128) uint8_t split_shared[sizeof(SplitShared)];  // the kernel's

template <bool kDown>
void run(const SplitParams& p) {
  ASSERT_TRUE(
      on_host::run_in_turn(p.layout.sms, kSplitThreads, split_shared, [&] { split_kernel<kDown>(p); }));
}

// What goes in, and rooms for what comes out.
struct Rows {
  std::vector<__half> x, h;
  std::vector<float> y;
  int sms = kFullSms;
  Rows(int rows, int slots)
      : x(static_cast<size_t>(rows) * kHidden),
        h(static_cast<size_t>(slots) * kHidden),
        y(static_cast<size_t>(slots) * kHidden) {
    std::mt19937 rng(7);
    std::normal_distribution<float> normal;
    for (__half& v : x) v = __float2half_rn(normal(rng));
  }
  void multiply(Activations up, const SplitRoute& route) {
    up.x = x.data(), up.tile = kSplitTokens;
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
  void compare(int expert, int row, int slot, Errors& errors) const {
    const auto row_of = [](const std::vector<__half>& all, int at) {
      return [from = &all[static_cast<size_t>(at) * kHidden]](int i) { return from[i]; };
    };
    errors.add(expert, row_of(x, row), row_of(h, slot), &y[static_cast<size_t>(slot) * kHidden]);
  }
};

TEST(SplitExperts, ChooseExpertsAndMultiply) {
  ASSERT_EQ(experts().fault, 0);
  constexpr int kRows = 13, kChosen = 2, kPairs = kRows * kChosen;
  Rows rows(kRows, kPairs);
  std::vector<float> logits, weights(kPairs);
  for (int row = 0; row < kRows; ++row) {  // expert 0 for all, 1 for three
    for (const float logit :
         {2.0f + 0.1f * static_cast<float>(row), row % 5 == 0 ? 1.0f : -1.0f, 0.5f, -2.0f, -3.0f})
      logits.push_back(logit);
  }
  std::vector<int32_t> slots(kPairs, -1), slot_rows(kPairs, -1);
  std::vector<Job> jobs(kPairs);
  int job_count = 0, made = 0;
  const Route route{.logits = logits.data(),
                    .rows = kRows,
                    .experts = kExperts,
                    .top_k = kChosen,
                    .tile = kSplitTokens,
                    .weights = weights.data(),
                    .slots = slots.data(),
                    .slot_rows = slot_rows.data(),
                    .jobs = jobs.data(),
                    .job_count = &job_count};
  ASSERT_TRUE(split_routes(route));
  rows.multiply({.rows = slot_rows.data(), .tokens = kPairs, .jobs = jobs.data(), .job_count = &job_count},
                {.route = route, .made = &made});
  EXPECT_EQ(made, 0);
  EXPECT_EQ(job_count, 3);
  Errors errors;
  for (int row = 0; row < kRows; ++row) {
    const int second = row % 5 == 0 ? 1 : 2;
    const double likelier = 1 / (1 + std::exp(logits[kExperts * row + second] - logits[kExperts * row]));
    EXPECT_NEAR(weights[kChosen * row], likelier, 1e-6);
    EXPECT_NEAR(weights[kChosen * row + 1], 1 - likelier, 1e-6);
    if (row % 4 != 0) continue;
    rows.compare(0, row, slots[kChosen * row], errors);
    rows.compare(second, row, slots[kChosen * row + 1], errors);
  }
  errors.check();
}

class SplitExpertsOnSms : public testing::TestWithParam<int> {};
TEST_P(SplitExpertsOnSms, MultiplyByGivenJobs) {
  ASSERT_EQ(experts().fault, 0);
  const std::vector<Job> jobs = {{0, 0, 16, 0}, {0, 16, 5, 16}, {2, 21, 1, 24}};
  const int job_count = static_cast<int>(jobs.size()), slots = 22;
  std::vector<int32_t> slot_rows;
  for (int slot = 0; slot < slots; ++slot) slot_rows.push_back((slot * 5 + 3) % slots);
  Rows rows(slots, slots);
  rows.sms = GetParam();
  rows.multiply({.rows = slot_rows.data(), .tokens = job_count, .jobs = jobs.data(), .job_count = &job_count},
                {});
  Errors errors;
  for (const Job& job : jobs) {
    for (const int token : {0, job.count / 2, job.count - 1})
      rows.compare(job.expert, slot_rows[job.first + token], job.first + token, errors);
  }
  errors.check();
}

INSTANTIATE_TEST_SUITE_P(Sms, SplitExpertsOnSms, testing::Values(kFullSms, 114, 78, 17),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace moesaic::cuda::sm90a
