// Exchanges between up to eight ranks, each of which is late at random before and behind every one; and how
// long one takes. Ranks beyond the number of GPUs share them. MOESAIC_EXCHANGES: how many; without it so many
// that they take a second.
#include "backend/cuda/ops/rank_exchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "backend/cuda/ops/late_ranks.h"
#include "backend/cuda/runtime/device.h"
#include "backend/cuda/runtime/device_guard.h"

namespace moesaic::cuda {
namespace {

// Before anything of this process uses CUDA (BackendOptions::tp).
const bool kLoadsAtOnce = setenv("CUDA_MODULE_LOADING", "EAGER", 1) == 0;

// The rows of a step's exchanges, an odd number of them. Up to 91 rows go by words that announce themselves,
// more by stores and flags.
constexpr int kRowsOf[] = {1, 8, 3, 64, 128, 1, 2, 91, 92, 5, 1};
constexpr int kMostRows = 2048, kOfAStep = std::size(kRowsOf);

// One GPU's side.
class RankOnGpu {
 public:
  Status open(const RankPlace& place, int gpus) {
    rank_ = place.share.rank, own_ = place.share.rows(kLateWidth);
    const int device = rank_ % gpus;
    RETURN_IF_ERROR(check(cudaSetDevice(device), "device"));
    RETURN_IF_ERROR(part_.open(rank_ / gpus, (place.share.ranks + gpus - 1) / gpus));
    ASSIGN_OR_RETURN(stream_, part_.make_stream());
    ASSIGN_OR_RETURN(control_, DeviceBuffer::allocate(sizeof(LateControl), "control"));
    RETURN_IF_ERROR(exchange_.open(place, device, part_, &control()->fault));
    for (int i = 0; i < kMatrices; ++i) {
      ASSIGN_OR_RETURN(matrices_[i],
                       DeviceBuffer::allocate(sizeof(float) * kMostRows * kLateWidth, "matrix"));
      ASSIGN_OR_RETURN(of_ranks_[i], exchange_.of_ranks(matrices_[i].as<float>()));
    }
    RETURN_IF_ERROR(check(cudaDeviceSynchronize(), "open"));
    return exchange_.meet();
  }
  ~RankOnGpu() {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  // Others may write to a matrix once this rank has taken part in an exchange behind its last use. So
  // neighbouring exchanges have other ones, those of two steps too.
  Status capture_checked() {
    return capture([&] {
      for (int i = 0; i < kOfAStep; ++i) {
        const int m = i == kOfAStep - 1 ? 2 : i % 2;
        float* const x = matrices_[m].as<float>();
        make_late(control(), i, rank_, x, kRowsOf[i], static_cast<int>(own_.first),
                  static_cast<int>(own_.count), stream_);
        RETURN_IF_ERROR(exchange_.gather_floats(of_ranks_[m], kRowsOf[i], kLateWidth, {}, stream_));
        compare_late(control(), i, rank_, x, kRowsOf[i], stream_);
      }
      return Status();
    });
  }
  Status capture_timed(int rows, int times) {
    return capture([&] {
      for (int i = 0; i < times; ++i)
        RETURN_IF_ERROR(exchange_.gather_floats(of_ranks_[i % 2], rows, kLateWidth, {}, stream_));
      return Status();
    });
  }
  Status step(uint32_t number) {
    ASSIGN_OR_RETURN(const int32_t epoch, exchange_.begin_step(&control()->epoch, stream_));
    begin_late(control(), epoch, number, kOfAStep, stream_);
    RETURN_IF_ERROR(check(cudaGraphLaunch(graph_, stream_), "step"));
    return exchange_.end_step(stream_);
  }
  Result<LateControl> finish() {
    LateControl c{};
    RETURN_IF_ERROR(check(cudaStreamSynchronize(stream_), "steps"));
    RETURN_IF_ERROR(check(cudaMemcpy(&c, control(), sizeof c, cudaMemcpyDeviceToHost), "control"));
    return c;
  }
  Status meet() { return exchange_.meet(); }

 private:
  static constexpr int kMatrices = 3;
  LateControl* control() { return control_.as<LateControl>(); }
  Status capture(const std::function<Status()>& record) {
    cudaGraph_t graph = nullptr;
    RETURN_IF_ERROR(exchange_.begin_step(&control()->epoch, stream_).status());
    RETURN_IF_ERROR(check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture"));
    const Status recorded = record();
    RETURN_IF_ERROR(check(cudaStreamEndCapture(stream_, &graph), "capture"));
    RETURN_IF_ERROR(recorded);
    RETURN_IF_ERROR(check(cudaGraphInstantiate(&graph_, graph, 0), "graph"));
    return check(cudaGraphDestroy(graph), "graph");
  }

  int rank_ = 0;
  Range own_;
  GpuPart part_;
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
  DeviceBuffer control_, matrices_[kMatrices];
  OfRanks<float> of_ranks_[kMatrices];
  RankExchange exchange_;
};

int gpus() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
  return std::min(count, kMostRanks);
}

// Runs it for every rank, each on a thread. The first error.
Status on_ranks(int ranks, int gpus, const std::function<Status(RankOnGpu& gpu, int rank)>& body) {
  const auto exchange = std::make_shared<Exchange>(ranks, 8);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      const RankPlace place{{rank, ranks}, exchange};
      RankOnGpu gpu;
      Status status = gpu.open(place, gpus);
      if (status.ok()) status = body(gpu, rank);
      if (!status.ok()) exchange->fail(status);
      cudaDeviceSynchronize();
      static_cast<void>(gpu.meet());  // others may still write to what it frees
    });
  for (std::thread& thread : threads) thread.join();
  return exchange->failure();
}

Status verdict(const LateControl& c, int rank) {
  if (c.fault == 0 && c.wrong == 0) return {};
  return error(StatusCode::kInternal, "rank {}: fault {}, {} wrong values", rank, c.fault, c.wrong);
}

TEST(RankExchange, ManyWithRandomDelays) {
  ASSERT_TRUE(kLoadsAtOnce);
  if (gpus() == 0) GTEST_SKIP() << "no CUDA device";
  const char* const asked = std::getenv("MOESAIC_EXCHANGES");
  const int exchanges = asked != nullptr ? std::max(1, std::atoi(asked)) : 20'000;
  for (int ranks = 2; ranks <= kMostRanks; ranks += ranks) {
    const Status status = on_ranks(ranks, gpus(), [&](RankOnGpu& gpu, int rank) -> Status {
      RETURN_IF_ERROR(gpu.capture_checked());
      for (int step = 0; step < exchanges / kOfAStep + 1; ++step)
        RETURN_IF_ERROR(gpu.step(static_cast<uint32_t>(step)));
      ASSIGN_OR_RETURN(const LateControl c, gpu.finish());
      return verdict(c, rank);
    });
    EXPECT_EQ(status.message(), "") << ranks;
  }
}

// Microseconds of an exchange of rows of 2,880 floats, one behind the other in a graph.
TEST(RankExchange, Speed) {
  ASSERT_TRUE(kLoadsAtOnce);
  if (gpus() < 2) GTEST_SKIP() << "this machine has fewer than two GPUs";
  constexpr int kTimes = 200, kSteps = 20;
  for (int ranks = 2; ranks <= gpus(); ranks += ranks) {
    for (const int rows : {1, 8, 64, 512, 2048}) {
      double microseconds = 0;
      const Status status = on_ranks(ranks, gpus(), [&](RankOnGpu& gpu, int rank) -> Status {
        RETURN_IF_ERROR(gpu.capture_timed(rows, kTimes));
        for (uint32_t step = 0; step < 3; ++step) RETURN_IF_ERROR(gpu.step(step));
        RETURN_IF_ERROR(gpu.finish().status());
        RETURN_IF_ERROR(gpu.meet());
        const auto began = std::chrono::steady_clock::now();
        for (uint32_t step = 0; step < kSteps; ++step) RETURN_IF_ERROR(gpu.step(step));
        ASSIGN_OR_RETURN(const LateControl c, gpu.finish());
        const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - began;
        if (rank == 0) microseconds = took.count() / (kTimes * kSteps);
        return verdict(c, rank);
      });
      ASSERT_EQ(status.message(), "") << ranks << " " << rows;
      std::printf("%d GPUs, %d rows: %.1f us an exchange\n", ranks, rows, microseconds);
      EXPECT_LT(microseconds, 1000);
    }
  }
}

}  // namespace
}  // namespace moesaic::cuda
