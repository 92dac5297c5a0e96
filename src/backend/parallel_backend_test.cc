// Ranks that fail, differ or never come back.
#include "backend/parallel_backend.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <random>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "backend/idle_backend.h"
#include "base/error.h"

namespace moesaic {
namespace {

constexpr double kShort = 0.2;  // seconds, in place of kRankLimit
constexpr int64_t kWidth = 64;

enum class Manner { kGood, kThrows, kStalls, kFails, kDiffers, kHangsAtTheEnd, kLoadsSlowly };

// Its moe() is one exchange, in which rank r gives columns of 1 + r.
class TestRank final : public IdleBackend {
 public:
  TestRank(RankPlace place, std::shared_future<void> release)
      : place_(std::move(place)), release_(std::move(release)) {
    ++alive;
  }
  ~TestRank() override { --alive; }

  Status load(const ModelConfig&, const ModelWeights&, const LoadProgress& progress) override {
    ++loading;
    const Status status = load(progress);
    --loading;
    return status;
  }
  Status load(const LoadProgress& progress) {
    for (int part = 1; part <= kParts; ++part) {
      if (!progress(part, kParts)) return {StatusCode::kCancelled, "cancelled"};
    }
    if (manner == Manner::kLoadsSlowly)
      std::this_thread::sleep_for(std::chrono::duration<double>(2 * kShort));
    static_cast<void>(place_.exchange->share(place_.share.rank, 0));
    return place_.exchange->failure();
  }
  void moe(int) override {
    const bool second = ++steps_ == 2;
    if (second && manner == Manner::kThrows) throw std::runtime_error("a rank that throws");
    if (second && manner == Manner::kStalls) release_.wait();
    const Range mine = place_.share.rows(kWidth);
    x_.assign(second && manner == Manner::kDiffers ? 2 * kWidth : kWidth, -1.0f);
    std::fill_n(x_.begin() + mine.first, mine.count, static_cast<float>(place_.share.rank + 1));
    place_.gather(x_.data(), std::ssize(x_) / kWidth, kWidth, mine);
  }
  void unembed(std::span<float> logits) override {
    std::ranges::copy_n(x_.begin(), std::ssize(logits), logits.begin());
  }
  Status end_step() override {
    if (steps_ == 2 && manner == Manner::kHangsAtTheEnd) release_.wait();
    if (steps_ == 2 && manner == Manner::kFails) return invalid("a rank that fails");
    return {};
  }

  Status forget_steps() override {
    ++forgotten;
    return {};
  }

  static inline std::atomic<int> alive = 0, loading = 0;
  static constexpr int kParts = 3;
  Manner manner = Manner::kGood;
  int forgotten = 0;  // calls of forget_steps()

 private:
  RankPlace place_;
  std::shared_future<void> release_;
  std::vector<float> x_;
  int steps_ = 0;
};

class ParallelBackendTest : public testing::Test {
 protected:
  // The last rank has this manner in the second step.
  void make(int ranks, Manner manner, bool together = false) {
    auto exchange = std::make_shared<Exchange>(ranks, kShort);
    std::vector<std::unique_ptr<Backend>> backends;
    for (int rank = 0; rank < ranks; ++rank) {
      auto backend =
          std::make_unique<TestRank>(RankPlace{{rank, ranks}, exchange}, release_.get_future_shared());
      if (rank == ranks - 1) backend->manner = manner, last_ = backend.get();
      backends.push_back(std::move(backend));
    }
    backend_ = make_parallel_backend(std::move(backends), exchange, {.limit = kShort, .together = together});
  }
  Status step() {
    logits_.assign(kWidth, 0.0f);
    RETURN_IF_ERROR(backend_->begin_step({}));
    backend_->embed();
    backend_->moe(0);
    backend_->unembed(logits_);
    return backend_->end_step();
  }
  bool logits_are_right(int ranks) const {
    for (int rank = 0; rank < ranks; ++rank) {
      const Range part = RankShare{rank, ranks}.rows(kWidth);
      for (int64_t i = part.first; i < part.first + part.count; ++i)
        if (logits_[static_cast<size_t>(i)] != static_cast<float>(rank + 1)) return false;
    }
    return true;
  }
  std::string second_step(Manner manner) {
    make(2, manner);
    EXPECT_EQ(step().message(), "");
    EXPECT_TRUE(logits_are_right(2));
    return step().message();
  }

  struct Release : std::promise<void> {
    std::shared_future<void> get_future_shared() {
      if (!future.valid()) future = get_future().share();
      return future;
    }
    std::shared_future<void> future;
  } release_;
  Status load(const LoadProgress& progress) {
    return backend_->load({.hidden = kWidth, .intermediate = kWidth, .kv_heads = 2, .vocab = kWidth}, {},
                          progress);
  }
  std::unique_ptr<Backend> backend_;
  TestRank* last_ = nullptr;
  std::vector<float> logits_;
};

TEST_F(ParallelBackendTest, TellsHowMuchIsLoadedAndStopsWhereItIsToldTo) {
  for (const bool goes_on : {true, false}) {
    make(2, Manner::kGood);
    std::vector<int> told;
    const Status status = load([&](int done, int total) {
      EXPECT_EQ(total, TestRank::kParts);
      told.push_back(done);
      return goes_on;
    });
    EXPECT_EQ(status.code(), goes_on ? StatusCode::kOk : StatusCode::kCancelled) << status.message();
    ASSERT_FALSE(told.empty());
    EXPECT_TRUE(!goes_on || told.back() == TestRank::kParts) << told.back();
  }
}

// The ranks still use what belongs to the call.
TEST_F(ParallelBackendTest, ProgressThatThrowsIsThrownWhenTheRanksAreDone) {
  make(2, Manner::kLoadsSlowly);
  const auto throws = [](int, int) -> bool { throw std::runtime_error("a callback"); };
  EXPECT_THROW(static_cast<void>(load(throws)), std::runtime_error);
  EXPECT_EQ(TestRank::loading, 0);
  EXPECT_EQ(load({}).message(), "");
  EXPECT_EQ(step().message(), "");
}

// Its disk gives its part of the model later than the other's. The limit of steps is there again afterwards.
TEST_F(ParallelBackendTest, ARankMayLoadForLongerThanAStepTakes) {
  make(2, Manner::kLoadsSlowly);
  EXPECT_EQ(load({}).message(), "");
  last_->manner = Manner::kStalls;
  EXPECT_EQ(step().message(), "");
  EXPECT_NE(step().message().find("did not end a step"), std::string::npos);
  backend_.reset();
  release_.set_value();
}

// The user may have few processes, so only some of the threads can be started.
TEST(ParallelBackendLimit, ThreadsThatCannotBeStartedAreAnError) {
  const auto make = [] {
    const rlimit few{.rlim_cur = 3, .rlim_max = 3};
    // Root has no such limit. Where it may not become another user, there is nothing to try.
    if ((getuid() == 0 && setuid(54321) != 0) || setrlimit(RLIMIT_NPROC, &few) != 0) std::_Exit(0);
    constexpr int kRanks = 8;
    const auto exchange = std::make_shared<Exchange>(kRanks, kShort);
    std::vector<std::unique_ptr<Backend>> backends;
    for (int rank = 0; rank < kRanks; ++rank)
      backends.push_back(
          std::make_unique<TestRank>(RankPlace{{rank, kRanks}, exchange}, std::shared_future<void>()));
    try {
      make_parallel_backend(std::move(backends), exchange);
    } catch (const std::system_error&) {
      const std::string said(create_backend("cpu", {.tp = kRanks, .threads = kRanks}).status().message());
      std::_Exit(TestRank::alive == 0 && said.starts_with("--tp 8: cannot start a thread") ? 0 : 2);
    }
    std::_Exit(1);
  };
  EXPECT_EXIT(make(), testing::ExitedWithCode(0), "");
}

TEST_F(ParallelBackendTest, EveryRankForgetsItsSteps) {
  make(2, Manner::kGood);
  EXPECT_EQ(backend_->forget_steps().message(), "");
  EXPECT_EQ(last_->forgotten, 1);
}

TEST_F(ParallelBackendTest, ARankThatThrowsOrFailsEndsOneStep) {
  for (const Manner manner : {Manner::kThrows, Manner::kFails}) {
    EXPECT_NE(second_step(manner).find("a rank that"), std::string::npos);
    EXPECT_EQ(step().message(), "");
    EXPECT_TRUE(logits_are_right(2));
  }
}

// Both ranks have ended their step, so nothing that they hold outlives the backend.
TEST_F(ParallelBackendTest, IdleRanksOfALostDeviceEndWithIt) {
  make(2, Manner::kFails, true);
  EXPECT_EQ(step().message(), "");
  EXPECT_NE(step().message().find("the device is lost"), std::string::npos);
  const int before = TestRank::alive;
  backend_.reset();
  EXPECT_EQ(TestRank::alive, before - 2);
}

TEST_F(ParallelBackendTest, RanksThatDisagreeAreAnError) {
  EXPECT_NE(second_step(Manner::kDiffers).find("ranks differ"), std::string::npos);
  EXPECT_EQ(step().message(), "");
}

// Before its part of an exchange, where others wait for it, or behind the last one.
TEST_F(ParallelBackendTest, ARankThatStallsIsLost) {
  for (const Manner manner : {Manner::kStalls, Manner::kHangsAtTheEnd}) {
    release_ = {};
    const auto start = std::chrono::steady_clock::now();
    EXPECT_NE(second_step(manner).find("1 of 2 ranks did not end a step"), std::string::npos);
    EXPECT_NE(step().message().find("lost"), std::string::npos);
    EXPECT_NE(backend_->alloc_kv({}).message().find("lost"), std::string::npos);
    backend_.reset();  // does not wait for the one that hangs
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));  // it would wait for ever
    release_.set_value();
  }
}

// A slow rank is waited for.
TEST_F(ParallelBackendTest, ARankMayBeSlow) {
  make(2, Manner::kStalls);
  EXPECT_TRUE(step().ok());
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::duration<double>(kShort / 10));
    release_.set_value();
  });
  EXPECT_EQ(step().message(), "");
  EXPECT_TRUE(logits_are_right(2));
  later.join();
}

// Exchanges of every size in a row, with ranks that come late by turns.
TEST(Exchange, EachGetsTheWhole) {
  constexpr int kRanks = 5, kTimes = 3000;
  Exchange exchange(kRanks, 60);
  std::atomic<int> wrong = 0;
  const auto run = [&](int rank) {
    std::mt19937 delay(static_cast<uint32_t>(rank));
    std::vector<float> x;
    for (int i = 0; i < kTimes; ++i) {
      const int64_t rows = 1 + i % 7, width = 160 + i % 3 * 64;
      const auto value = [&](int64_t row, int64_t column) {
        return static_cast<float>(i * 1000 + row * 600 + column);
      };
      const Range mine = RankShare{rank, kRanks}.rows(width);
      x.assign(static_cast<size_t>(rows * width), -1);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = mine.first; c < mine.first + mine.count; ++c)
          x[static_cast<size_t>(r * width + c)] = value(r, c);
      if (delay() % 16 == 0) std::this_thread::yield();
      exchange.gather(rank, {x.data() + mine.first, width, rows, mine}, x.data(), width);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < width; ++c)
          wrong += x[static_cast<size_t>(r * width + c)] != value(r, c) ? 1 : 0;
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) threads.emplace_back(run, rank);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(exchange.failure().ok());
}

class NamedBackend final : public IdleBackend {
 public:
  explicit NamedBackend(std::string name, double available = 4)
      : name_(std::move(name)), available_(available) {}
  DeviceInfo device() const override { return {.name = name_, .memory_total = 10, .memory_free = 4}; }
  double available_memory() const override { return available_; }

 private:
  std::string name_;
  double available_;
};

// A draft model is opened on what its model's device is called.
TEST(RankDevices, HaveANameTogether) {
  const auto device = [](const std::vector<std::string>& names) {
    std::vector<std::unique_ptr<Backend>> ranks;
    for (const std::string& name : names) ranks.push_back(std::make_unique<NamedBackend>(name));
    const int count = static_cast<int>(names.size());
    return make_parallel_backend(std::move(ranks), std::make_shared<Exchange>(count, kShort))->device();
  };
  EXPECT_EQ(device({"cuda:2", "cuda:5", "cuda:0"}).name, "cuda:2,5,0");
  EXPECT_EQ(device({"cuda:2", "cuda:5", "cuda:0"}).memory_total, 30);
  EXPECT_EQ(device({"cuda:0", "cuda:0"}).name, "cuda:0,0");  // each has a half of its memory
  EXPECT_EQ(device({"cuda:0", "cuda:0"}).memory_total, 20);
  EXPECT_EQ(device({"cpu", "cpu"}).name, "cpu");
  EXPECT_EQ(device({"cpu", "cpu"}).memory_free, 4);
}

// The GPU with the least memory free says how much all of them may take.
TEST(RankDevices, HaveRoomForAsMuchEach) {
  const auto available = [](const std::vector<std::pair<std::string, double>>& devices) {
    std::vector<std::unique_ptr<Backend>> ranks;
    for (const auto& [name, bytes] : devices) ranks.push_back(std::make_unique<NamedBackend>(name, bytes));
    const int count = static_cast<int>(ranks.size());
    return make_parallel_backend(std::move(ranks), std::make_shared<Exchange>(count, kShort))
        ->available_memory();
  };
  EXPECT_EQ(available({{"cuda:0", 80}, {"cuda:1", 65}}), 130);
  EXPECT_EQ(available({{"cuda:0", 40}, {"cuda:0", 40}}), 80);
  EXPECT_EQ(available({{"cpu", 64}, {"cpu", 64}}), 64);
}

// One rank's host would compute for all.
TEST(RankDevices, HaveNoExpertsInHostMemory) {
  for (const BackendOptions& options : {BackendOptions{.tp = 2, .experts = {.host_layers = 1}},
                                        BackendOptions{.tp = 2, .experts = {.automatic = true}},
                                        BackendOptions{.tp = 2, .gpu_memory = 1e9}}) {
    const auto made = create_backend("cuda", options);
    EXPECT_EQ(made.status().message(),
              "--tp 2: experts in host memory (--experts, --gpu-memory) have one rank; use --tp 1");
  }
}

TEST(RankDevices, AreNamedOneByOne) {
  const auto refusal = [](const char* device, int tp) {
    return create_backend(device, {.tp = tp}).status().message();
  };
  EXPECT_NE(refusal("cuda:0,1", 3).find("names 2 GPUs"), std::string::npos);
  for (const char* device : {"cuda:", "cuda:0,", "cuda:,1", "cuda:0,-1", "cuda:0;1", "cuda:99999999999"})
    EXPECT_NE(refusal(device, 1).find("use cuda, cuda:N, or cuda:N,M"), std::string::npos) << device;
}

}  // namespace
}  // namespace moesaic
