// The CUDA backend with experts of gpt-oss's own size, which alone have kernels whose grid is the device's
// multiprocessors. Skipped where there is no GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "base/relative_error_test.h"
#include "model/random_model.h"
#include "model_golden.h"

namespace moesaic {
namespace {

class CudaModels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!create_backend("cuda", {}).ok()) GTEST_SKIP() << "no CUDA device";
    weights_ = make_random_model(config_, {.seed = 3});
  }
  std::unique_ptr<Backend> load(int max_sms) {
    auto backend = create_backend("cuda", {.max_rows = 512, .max_sms = max_sms});
    EXPECT_TRUE(backend.ok()) << backend.status().message();
    const Status status = backend.value()->load(config_, weights_, {});
    EXPECT_TRUE(status.ok()) << status.message();
    return std::move(backend).value();
  }
  // Logits of all rows, in steps of so many.
  std::vector<float> logits(Backend& backend, int tokens, int rows) {
    return run_sequence(backend, config_, golden_.prompt(tokens), rows, true);
  }

  Golden golden_ = load_golden("h96-e5");
  const ModelConfig config_ = [&] {
    ModelConfig c = golden_.config;
    c.layers = 2, c.sliding = {true, false};
    c.hidden = c.intermediate = 2880;
    c.experts = 8, c.experts_per_token = 4;
    return c;
  }();
  ModelWeights weights_;
};

TEST_F(CudaModels, FewerMultiprocessorsGiveTheSameLogits) {
  const auto all = load(0);
  for (const int sms : {114, 78, 17}) {
    const auto fewer = load(sms);
    for (const int rows : {1, 2, 8, 24, 100}) {
      const auto want = logits(*all, 100, rows), got = logits(*fewer, 100, rows);
      ASSERT_EQ(got.size(), want.size());
      EXPECT_LT(relative_error(got, want), 5e-3) << sms << " multiprocessors, " << rows << " rows";
    }
  }
}

// Few rows of a sequence are attended to one by one, as a draft that is verified has them: each reads pages
// that the same step writes.
TEST_F(CudaModels, FewRowsGiveTheLogitsOfSingleOnes) {
  const auto backend = load(0);
  const auto want = logits(*backend, 700, 1);
  for (const int rows : {2, 3, 5, 7, 8, 9}) {
    const auto got = logits(*backend, 700, rows);
    ASSERT_EQ(got.size(), want.size());
    EXPECT_LT(relative_error(got, want), 5e-3) << rows << " rows";
  }
}

TEST_F(CudaModels, TwoModelsOnOneDeviceEachSteppedByItsOwnThread) {
  std::unique_ptr<Backend> models[] = {load(0), load(114)};
  // Each round allocates a KV cache and captures its graphs again, while the other thread is anywhere.
  constexpr int kTokens[] = {100, 400}, kRounds[] = {20, 5};
  const auto logits_of = [&](int i) { return logits(*models[i], kTokens[i], 1 + i); };
  const std::vector<float> alone[] = {logits_of(0), logits_of(1)};
  const auto run = [&](int i) {
    for (int round = 0; round < kRounds[i]; ++round)
      EXPECT_EQ(logits_of(i), alone[i]) << "model " << i << ", round " << round;
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
}

}  // namespace
}  // namespace moesaic
