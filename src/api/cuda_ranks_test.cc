// Several ranks of a model answer what one does. Those beyond the number of GPUs share them.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <future>
#include <thread>

#include "api/ranks_test.h"
#include "backend/backend.h"
#include "base/temporary_folder.h"
#include "checkpoint/dummy.h"
#include "model/forward.h"

namespace moesaic {
namespace {

// Before anything of this process uses CUDA (BackendOptions::tp).
const bool kLoadsAtOnce = setenv("CUDA_MODULE_LOADING", "EAGER", 1) == 0;

int gpus() {
  return static_cast<int>(std::ranges::count_if(
      list_devices(), [](const DeviceInfo& d) { return d.backend == "cuda" && d.usable; }));
}

// "cuda:0,1,0,1" for four ranks on two GPUs.
std::string device_of(int ranks) {
  std::string device = "cuda:0";
  for (int rank = 1; rank < ranks; ++rank) device += "," + std::to_string(rank % gpus());
  return device;
}

// A tokenizer of gpt-oss's size: single bytes, then strings of three.
std::string tokenizer_file(const TemporaryFolder& folder) {
  static constexpr const char* kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string path = folder.path() + "/all.tiktoken";
  std::ofstream out(path);
  const auto digit = [&](int i) { return kDigits[i & 63]; };
  for (int i = 0; i < 256; ++i) out << digit(i >> 2) << digit(i << 4) << "== " << i << "\n";
  for (int i = 256; i < 199998; ++i)
    out << digit(i >> 18) << digit(i >> 12) << digit(i >> 6) << digit(i) << ' ' << i << "\n";
  return path;
}

struct Load {
  int requests, prompt, tokens, batch;
};
struct Case {
  const char* name;
  std::string model;
  int most_ranks;
  // One order of sums whatever the sizes. Otherwise a rank's part of a matrix may be multiplied by another
  // kernel than the whole.
  bool batch_invariant;
};

// How far the log-probabilities of answers' first tokens, before which nothing was sampled, are apart.
struct FirstTokens {
  double sum = 0, most = 0;
  int count = 0;

  void add(const Answers& got, const Answers& expected) {
    for (size_t i = 0; i < got.records.size(); ++i) {
      const Record &a = got.records[i], &b = expected.records[i];
      ASSERT_EQ(a.sampled.size(), b.sampled.size()) << i;
      if (a.tokens[0] != b.tokens[0]) continue;
      const double apart = std::abs(a.sampled[0].logprobs.logprob - b.sampled[0].logprobs.logprob);
      sum += apart, most = std::max(most, apart), ++count;
    }
  }
};

class CudaRanks : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (gpus() == 0) GTEST_SKIP() << "no usable GPU";
  }
  static Model open(int tp, const Load& load) {
    OpenOptions options{
        .device = device_of(tp), .context = 5000, .max_batch = load.batch, .kv_tokens = 40000, .tp = tp};
    options.batch_invariant = GetParam().batch_invariant;
    static const TemporaryFolder folder;
    if (GetParam().model.starts_with("dummy:")) options.tokenizer = tokenizer_file(folder);
    auto model = Model::open(GetParam().model, options);
    EXPECT_TRUE(model.ok()) << model.status().message();
    return std::move(model).value();
  }
};

// Without batch_invariant, one GPU and ranks do not add in the same order: one GPU's kernels for experts are
// those that were measured on it, ranks' are chosen by estimate, and the rows of a step depend on how fast
// prompts were. A rounding may change which experts a row has, so a single answer may be further off.
TEST_P(CudaRanks, AnswerAsOneDoes) {
  ASSERT_TRUE(kLoadsAtOnce);
  FirstTokens apart;
  for (const Load& load : {Load{1, 40, 24, 1}, Load{2, 33, 20, 2}, Load{7, 50, 16, 8}, Load{24, 200, 12, 24},
                           Load{100, 60, 8, 128}, Load{3, 2500, 6, 4}}) {
    Model one = open(1, load);
    const Answers expected = answers(one, load.requests, load.prompt, load.tokens);
    // More than four on a GPU have portable kernels, whose bits are others.
    for (int ranks = 2; ranks <= std::min(4 * gpus(), GetParam().most_ranks); ranks += ranks) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, " << load.requests << " requests");
      Model several = open(ranks, load);
      const Answers got = answers(several, load.requests, load.prompt, load.tokens);
      if (GetParam().batch_invariant) {
        expect_equal(got, expected);
      } else {
        apart.add(got, expected);
      }
    }
  }
  if (GetParam().batch_invariant) return;
  std::printf("%d first tokens, %.4f apart, at most %.4f\n", apart.count, apart.sum / apart.count,
              apart.most);
  ASSERT_GT(apart.count, 0);
  EXPECT_LT(apart.sum / apart.count, 0.05);
  EXPECT_LT(apart.most, 0.5);
}

INSTANTIATE_TEST_SUITE_P(Models, CudaRanks,
                         testing::Values(Case{"tiny", kTiny, 2, true},
                                         Case{"slabs", "dummy:gpt-oss-20b,layers=3", 8, true},
                                         Case{"slabs_default", "dummy:gpt-oss-20b,layers=3", 8, false},
                                         Case{"large", "dummy:gpt-oss-120b,layers=2,dense=bf16", 8, false}),
                         [](const auto& i) { return std::string(i.param.name); });

// Steps of two ranks.
class CudaRankSteps : public testing::Test {
 protected:
  void SetUp() override {
    if (gpus() == 0) GTEST_SKIP() << "no usable GPU";
    ASSERT_TRUE(kLoadsAtOnce);
  }
  void load(RouterTrace trace) {
    BackendOptions options{.tp = 2, .max_rows = 64};
    options.router_trace = std::move(trace);
    auto backend = create_backend(device_of(2), options);
    ASSERT_TRUE(backend.ok()) << backend.status().message();
    backend_ = std::move(backend).value();
    ASSERT_TRUE(backend_->load(model_.config, model_.weights, {}).ok());
    ASSERT_TRUE(backend_->alloc_kv({.page_tokens = kPageTokens, .full_pages = 2, .window_pages = 2}).ok());
  }
  Status step() { return step(*backend_); }
  Status step(Backend& backend) {
    const Batch batch{
        .tokens = {7},
        .positions = {0},
        .sequences = {{.first_row = 0, .rows = 1, .context = 1, .full_pages = {1}, .window_pages = {1}}},
        .logit_rows = {0}};
    std::vector<float> logits(static_cast<size_t>(model_.config.vocab));
    return forward(backend, model_.config, batch, logits);
  }

  Checkpoint model_ = make_dummy("gpt-oss-20b,layers=2,vocab=4096").value();
  std::unique_ptr<Backend> backend_;
};

// One rank fails or stalls in the middle, while the other's kernels wait for it. A trace copies logits to the
// host within the step, and such a copy waits for all kernels of a GPU: each rank needs its own.
class CudaRankLosses : public CudaRankSteps {
 protected:
  void SetUp() override {
    if (gpus() < 2) GTEST_SKIP() << "this machine has fewer than two usable GPUs";
    ASSERT_TRUE(kLoadsAtOnce);
  }
  // Expects the second step to lose the backend, and nothing to wait for long afterwards.
  void expect_loss(const RouterTrace& in_second_step) {
    // A rank that stalls outlives the test.
    load([in_second_step, layers = model_.config.layers, calls = std::make_shared<int>(0)](
             int layer, int row, std::span<const float> logits) {
      if (++*calls > layers) in_second_step(layer, row, logits);
    });
    ASSERT_EQ(step().message(), "");
    const auto start = std::chrono::steady_clock::now();
    EXPECT_NE(step().message().find("load the model again"), std::string::npos);
    EXPECT_NE(step().message().find("load the model again"), std::string::npos);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  }
};

// The kernels of both models wait for the other GPU. Neither model may keep the other's kernels from running
// there.
TEST_F(CudaRankSteps, TwoModelsTakeTurns) {
  load(nullptr);
  std::unique_ptr<Backend> first = std::move(backend_);
  load(nullptr);
  const auto steps = [&](Backend& backend) {
    for (int i = 0; i < 200; ++i) ASSERT_EQ(step(backend).message(), "") << i;
  };
  std::thread other([&] { steps(*first); });
  steps(*backend_);
  other.join();
}

TEST_F(CudaRankLosses, ARankThatThrowsLosesTheBackend) {
  expect_loss([](int, int, std::span<const float>) { throw std::runtime_error("a rank that throws"); });
  load(nullptr);  // again
  EXPECT_EQ(step().message(), "");
}

TEST_F(CudaRankLosses, ARankThatStallsLosesTheBackend) {
  auto gate = std::make_shared<std::promise<void>>();
  expect_loss([stalls = gate->get_future().share()](int, int, std::span<const float>) { stalls.wait(); });
  backend_.reset();
  gate->set_value();
}

}  // namespace
}  // namespace moesaic
