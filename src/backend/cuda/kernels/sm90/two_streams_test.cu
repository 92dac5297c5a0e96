// Kernels whose CTAs wait for each other beside other streams: none waits for ever. For Hopper GPUs.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "backend/cuda/kernels/common/gave_up.h"
#include "backend/cuda/kernels/ptx/async_copy.cuh"
#include "backend/cuda/kernels/sm90/moe_decode.h"
#include "backend/cuda/testing/on_device.h"
#include "backend/moe_operator.h"

namespace moesaic::cuda::sm90 {
namespace {

using sm120::download, sm120::upload;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds, std::chrono::seconds;

constexpr int kTestExperts = 8;
constexpr size_t kHoldShared = 200 << 10;  // leaves no room for a CTA of moe_decode beside it

// Keeps a multiprocessor until it is released, a minute at most.
__global__ void hold_kernel(volatile int* released, int* held) {
  if (threadIdx.x > 0) return;
  atomicAdd_system(held, 1);
  const uint32_t began = clock_ticks();
  while (*released == 0 && clock_ticks() - began < 14) {
  }
}

class Stream {
 public:
  explicit Stream(int priority = 0) {
    EXPECT_EQ(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority), cudaSuccess);
  }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }
  // True if it does all its work within the limit.
  bool ends_within(milliseconds limit) const {
    const Clock::time_point end = Clock::now() + limit;
    while (cudaStreamQuery(stream_) == cudaErrorNotReady) {
      if (Clock::now() > end) return false;
      std::this_thread::sleep_for(milliseconds(1));
    }
    cudaGetLastError();  // cudaErrorNotReady
    return cudaStreamQuery(stream_) == cudaSuccess;
  }

 private:
  cudaStream_t stream_ = nullptr;
};

// Multiprocessors that nobody else gets, from the constructor's end to release().
class Hold {
 public:
  explicit Hold(int multiprocessors) : words_(PinnedBuffer::allocate(2 * sizeof(int)).value()) {
    volatile int* const words = words_.as<int>();
    words[0] = 0;
    words[1] = 0;
    EXPECT_TRUE(set_attributes(hold_kernel, {.max_shared = kHoldShared, .prefer_shared = true}).ok());
    hold_kernel<<<multiprocessors, 32, kHoldShared, stream_>>>(words, words_.as<int>() + 1);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    const Clock::time_point end = Clock::now() + seconds(20);
    while (words[1] < multiprocessors && Clock::now() < end) std::this_thread::yield();
    EXPECT_EQ(words[1], multiprocessors);
  }
  ~Hold() {
    release();
    cudaStreamSynchronize(stream_);
  }
  cudaStream_t stream() const { return stream_; }
  void release() { *static_cast<volatile int*>(words_.as<int>()) = 1; }

 private:
  PinnedBuffer words_;
  Stream stream_;
};

class TwoStreams : public sm120::OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    cudaDeviceProp p{};
    ASSERT_EQ(cudaGetDeviceProperties(&p, 0), cudaSuccess);
    if (p.major != 9) GTEST_SKIP() << "not a Hopper GPU";
    sms_ = p.multiProcessorCount;
  }
  int sms_ = 0;
};

// ---- the kernel alone: weights of zero, so that only what is missing is NaN ----

struct Decode {
  static constexpr int kTokens = 3;
  DeviceBuffer fc1 = zeros(kTestExperts * kFc1Bytes), fc2 = zeros(kTestExperts * kFc2Bytes),
               x = zeros(kTokens * kHidden * 2), scale = zeros(kTokens * 4),
               logits = zeros(kTokens * kTestExperts * 4), out = zeros(kTokens * kHidden * 4),
               fault = zeros(sizeof(int)), h = zeros(kTokens * kTopK * kHidden * 2);
  SlabLayout layout;

  explicit Decode(int sms) : layout(slab_layout(sms)) {
    EXPECT_TRUE(prepare_moe_decode(layout).ok());
    run(nullptr);  // loads it
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  static DeviceBuffer zeros(size_t bytes) { return DeviceBuffer::allocate(bytes, "test").value(); }
  void run(cudaStream_t stream) {
    EXPECT_EQ(cudaMemsetAsync(h.as<void>(), 0xFF, h.bytes(), stream), cudaSuccess);
    EXPECT_EQ(cudaMemsetAsync(out.as<void>(), 0, out.bytes(), stream), cudaSuccess);
    const Status status = moe_decode({.fc1 = fc1.as<uint8_t>(),
                                      .fc2 = fc2.as<uint8_t>(),
                                      .x = x.as<__half>(),
                                      .x_scale = scale.as<float>(),
                                      .logits = logits.as<float>(),
                                      .experts = kTestExperts,
                                      .residual = out.as<float>(),
                                      .out = out.as<float>(),
                                      .h = h.as<__half>(),
                                      .h_clear = nullptr,
                                      .clear_vectors = 0,
                                      .tokens = kTokens,
                                      .layout = layout,
                                      .fault = fault.as<int>()},
                                     stream);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  int nans() const {
    int count = 0;
    for (const float v : download<float>(out, kTokens * kHidden)) count += std::isnan(v);
    return count;
  }
  int take_fault() {
    const int left = download<int>(fault, 1)[0];
    EXPECT_EQ(cudaMemset(fault.as<int>(), 0, sizeof(int)), cudaSuccess);
    return left;
  }
};

// None of its CTAs has begun, so none can lose its patience.
TEST_F(TwoStreams, ADecodeKernelWaitsForRoom) {
  Decode decode(sms_);
  Hold hold(1);
  Stream stream;
  decode.run(stream);
  EXPECT_FALSE(stream.ends_within(seconds(15)));
  hold.release();
  ASSERT_TRUE(stream.ends_within(seconds(5)));
  EXPECT_EQ(decode.take_fault(), 0);
  EXPECT_EQ(decode.nans(), 0);
}

// The part of the next test that loses its device.
TEST_F(TwoStreams, DISABLED_LosesItsDevice) {
  auto memory = std::make_unique<DeviceBuffer>(Decode::zeros(1 << 20));
  const auto hold = std::make_unique<Hold>(1);
  const Status late = StepWait(1)(hold->stream(), "step");
  memory.reset();
  std::exit(late.code() == StatusCode::kInternal && device_is_lost() ? 17 : 1);
}

// Nobody waits for it at the program's end either. In a process of its own, whose device is lost.
TEST_F(TwoStreams, AKernelThatDoesNotEndLetsTheProgramEnd) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  const Clock::time_point began = Clock::now();
  const int status = std::system(("\"" + program +
                                  "\" --gtest_also_run_disabled_tests "
                                  "--gtest_filter=TwoStreams.DISABLED_LosesItsDevice")
                                     .c_str());
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 17) << status;
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - began).count(), 30);  // the kernel takes a minute
}

// ---- the operator ----

template <typename T>
DeviceBuffer random_bytes(size_t count, std::mt19937& rng, uint32_t least, uint32_t span) {
  std::vector<T> values(count);
  for (T& v : values) v = static_cast<T>(least + rng() % span);
  return upload(values);
}

struct Operator {
  std::unique_ptr<MoeOperator> moe;

  Operator() {
    std::mt19937 rng(5);
    const auto blocks = [&](int rows) {
      return random_bytes<uint8_t>(size_t{kTestExperts} * rows * kHidden / 2, rng, 0, 256);
    };
    const auto scales = [&](int rows) {
      return random_bytes<uint8_t>(size_t{kTestExperts} * rows * kHidden / 32, rng, 118, 3);
    };
    const DeviceBuffer b13 = blocks(2 * kHidden), s13 = scales(2 * kHidden), b2 = blocks(kHidden),
                       s2 = scales(kHidden);
    const auto matrix = [](const DeviceBuffer& b, const DeviceBuffer& s, int rows) {
      return MoeOperatorMatrix{.blocks = b.as<void>(),
                               .scales = s.as<void>(),
                               .block_expert_stride = int64_t{rows} * kHidden / 2,
                               .block_row_stride = kHidden / 2,
                               .scale_expert_stride = int64_t{rows} * kHidden / 32,
                               .scale_row_stride = kHidden / 32};
    };
    auto made = prepare_moe({.experts = kTestExperts, .hidden = kHidden, .intermediate = kHidden},
                            matrix(b13, s13, 2 * kHidden), matrix(b2, s2, kHidden), nullptr);
    EXPECT_TRUE(made.ok()) << made.status().message();
    if (made.ok()) moe = std::move(made).value();
  }
};

// A call's input, and what it gives alone on the device.
struct Call {
  const Operator& of;
  int tokens;
  DeviceBuffer x, logits, out;
  std::vector<uint16_t> wanted;

  Call(const Operator& op, int count, int seed) : of(op), tokens(count) {
    std::mt19937 rng(seed);
    x = random_bytes<uint16_t>(size_t(count) * kHidden, rng, 0x3E00, 0x180);  // BF16 of 0.1 to 1
    std::vector<float> scores(size_t(count) * kTestExperts);
    for (float& v : scores) v = static_cast<float>(rng() % 1000) / 250;
    logits = upload(scores);
    out = DeviceBuffer::allocate(x.bytes(), "test").value();
    Stream stream;
    run(stream);
    EXPECT_TRUE(stream.ends_within(seconds(10)));
    wanted = result();
    EXPECT_GT(std::ranges::count_if(wanted, [](uint16_t v) { return v != 0; }), kHidden / 2);
    clear();
  }
  void run(cudaStream_t stream) const {
    const Status status = of.moe->run({.tokens = tokens,
                                       .x = x.as<void>(),
                                       .out = out.as<void>(),
                                       .logits = logits.as<void>(),
                                       .stream = stream});
    EXPECT_TRUE(status.ok()) << status.message();
  }
  void clear() const { EXPECT_EQ(cudaMemset(out.as<void>(), 0xFF, out.bytes()), cudaSuccess); }
  std::vector<uint16_t> result() const { return download<uint16_t>(out, size_t(tokens) * kHidden); }
};

struct Priorities {
  int least = 0, greatest = 0;
  Priorities() { cudaDeviceGetStreamPriorityRange(&least, &greatest); }
};

// A half of the device is kept from both. One begins on the other half; the rest of the device then goes to
// the other stream, since that has precedence. Two grids that each have a half and want the rest never end,
// unless the device starts all of a grid or nothing.
TEST_F(TwoStreams, ShareTheDeviceWithoutEndlessWaits) {
  const Operator op;
  ASSERT_NE(op.moe, nullptr);
  const Priorities priorities;
  Stream low(priorities.least), high(priorities.greatest);
  for (const int tokens : {1, 2, 4, 8}) {
    ASSERT_EQ(op.moe->plan(tokens), "slabs, decode");
    Call first(op, tokens, 1), second(op, tokens, 2);
    first.run(low), second.run(high);  // allocates
    ASSERT_TRUE(low.ends_within(seconds(30)) && high.ends_within(seconds(30)));
    for (int i = 0; i < 10; ++i) {
      first.clear(), second.clear();
      Hold hold(sms_ / 2);
      first.run(low);
      std::this_thread::sleep_for(milliseconds(2));  // its CTAs come, if they do
      second.run(high);
      std::this_thread::sleep_for(milliseconds(2));
      hold.release();
      ASSERT_TRUE(low.ends_within(seconds(30)) && high.ends_within(seconds(30))) << tokens << " tokens";
      ASSERT_TRUE(first.result() == first.wanted && second.result() == second.wanted) << tokens << " tokens";
    }
  }
}

TEST_F(TwoStreams, GiveTheSameBitsUnderContention) {
  const Operator op;
  ASSERT_NE(op.moe, nullptr);
  const Priorities priorities;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::vector<std::unique_ptr<Call>>> calls;
  for (int s = 0; s < 4; ++s) {
    streams.push_back(std::make_unique<Stream>(s % 2 == 0 ? priorities.least : priorities.greatest));
    for (calls.emplace_back(); std::ssize(calls[s]) < 3;)
      calls[s].push_back(
          std::make_unique<Call>(op, std::array{1, 2, 3, 8, 16, 1}[s + std::ssize(calls[s])], s));
  }
  const auto work = [&](int s) {
    for (int i = 0; i < 2000; ++i) calls[s][i % 3]->run(*streams[s]);
  };
  const Clock::time_point began = Clock::now();
  std::vector<std::thread> threads;
  for (int s = 0; s < 4; ++s) threads.emplace_back(work, s);
  for (std::thread& t : threads) t.join();
  for (const auto& stream : streams) ASSERT_TRUE(stream->ends_within(seconds(60)));
  std::printf("8,000 calls on 4 streams: %.2f s\n",
              std::chrono::duration<double>(Clock::now() - began).count());
  for (const auto& of_stream : calls) {
    for (const auto& call : of_stream) EXPECT_TRUE(call->result() == call->wanted) << call->tokens;
  }
}

// ---- graphs ----

class Graph {
 public:
  Graph(cudaStream_t stream, std::initializer_list<const Call*> calls) {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    for (const Call* call : calls) call->run(stream);
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&executable_, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);  // the executable has its memory
  }
  ~Graph() { cudaGraphExecDestroy(executable_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void replay(cudaStream_t stream) const { EXPECT_EQ(cudaGraphLaunch(executable_, stream), cudaSuccess); }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

// On one stream, with sizes that were not called before; replayed on two, beside calls on the stream of the
// capture.
TEST_F(TwoStreams, GraphsOfOneStreamDoNotShareScratch) {
  const Operator op;
  ASSERT_NE(op.moe, nullptr);
  for (const int tokens : {1, 7, 13, 48, 200}) {
    Call first(op, tokens, 1), after(op, tokens + 1, 2), second(op, tokens, 3), eager(op, tokens, 4);
    Stream captured, other, third;
    const Graph one(captured, {&first, &after}), two(captured, {&second});
    eager.run(captured);  // allocates
    for (int i = 0; i < 200; ++i) {
      one.replay(other), two.replay(third);
      if (i % 4 == 0) eager.run(captured);
    }
    ASSERT_TRUE(captured.ends_within(seconds(30)) && other.ends_within(seconds(30)) &&
                third.ends_within(seconds(30)))
        << tokens;
    for (const Call* call : {&first, &after, &second, &eager})
      EXPECT_TRUE(call->result() == call->wanted) << tokens;
  }
}

// Memory of graphs that are gone serves others.
TEST_F(TwoStreams, GraphsLeaveTheirScratch) {
  const Operator op;
  ASSERT_NE(op.moe, nullptr);
  Stream stream;
  const Call call(op, 512, 1);
  const auto free_bytes = [] {
    size_t left = 0, all = 0;
    EXPECT_EQ(cudaMemGetInfo(&left, &all), cudaSuccess);
    return left;
  };
  size_t before = 0;
  for (int i = 0; i < 50; ++i) {
    call.clear();
    {
      const Graph graph(stream, {&call});
      graph.replay(stream);
      ASSERT_TRUE(stream.ends_within(seconds(10)));
      EXPECT_TRUE(call.result() == call.wanted);
    }
    std::this_thread::sleep_for(milliseconds(20));  // CUDA's thread says that it is gone
    if (i == 9) before = free_bytes();
  }
  EXPECT_GE(free_bytes() + 2 * op.moe->workspace_bytes(512), before);
}

}  // namespace
}  // namespace moesaic::cuda::sm90
