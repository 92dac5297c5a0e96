// Exchanges between ranks on the host, all ranks at once.
#include "backend/cuda/kernels/common/gather.cu"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <random>

#include "backend/cuda/kernels/common/word_sender.cuh"
#include "backend/cuda/testing/host_simulator/thread_block.h"

namespace moesaic::cuda {
namespace {

// Ranks that exchange matrices of random words, of which each makes its columns, in units of 32.
class Exchanges {
 public:
  Exchanges(int ranks, int rows, int width) : ranks_(ranks), rows_(rows), width_(width) {
    for (int rank = 0; rank < ranks; ++rank) {
      inboxes_.emplace_back(kInboxQuarters * kInboxWords), arrived_.emplace_back(kMostRanks * kGatherCtas);
      const Range range = RankShare{rank, ranks}.rows(width);
      columns_.first[rank + 1] = static_cast<int>(range.first + range.count);
    }
    for (int rank = 0; rank < ranks; ++rank) {
      RankLinks& l = links_.emplace_back(
          RankLinks{.rank = rank, .ranks = ranks, .epoch = &epoch_, .fault = &faults_[rank]});
      for (int r = 0; r < ranks; ++r)
        l.inbox.at[r] = inboxes_[r].data(), l.arrived.at[r] = arrived_[r].data();
    }
  }

  // The index-th exchange of a step. compact: this rank's words stand apart from the whole.
  std::vector<Gather> begin(int index, bool compact = false) {
    whole_.assign(ranks_, std::vector<uint32_t>(rows_ * width_, 0xDEADu));
    parts_.assign(ranks_, {});
    expected_.resize(rows_ * width_);
    for (uint32_t& word : expected_) word = rng_();
    std::vector<Gather> gathers;
    for (int rank = 0; rank < ranks_; ++rank) {
      const int first = columns_.first[rank], own = columns_.first[rank + 1] - first;
      for (int row = 0; row < rows_; ++row) {
        const auto from = expected_.begin() + row * width_ + first;
        if (compact)
          parts_[rank].insert(parts_[rank].end(), from, from + own);
        else
          std::copy_n(from, own, whole_[rank].begin() + row * width_ + first);
      }
      Gather& g = gathers.emplace_back(Gather{.index = index,
                                              .part = compact ? parts_[rank].data() : &whole_[rank][first],
                                              .part_stride = compact ? own : width_,
                                              .width = width_,
                                              .rows = rows_,
                                              .columns = columns_});
      for (int r = 0; r < ranks_; ++r) g.whole.at[r] = whole_[r].data();
    }
    return gathers;
  }
  template <typename Kernel>
  void run(unsigned ctas, const Kernel& kernel, unsigned ranks) const {
    EXPECT_TRUE(on_host::run_at_once(
        ctas, kThreads, {}, [&] { kernel(blockIdx.z); }, 1, ranks));
  }
  template <typename Kernel>
  void run(unsigned ctas, const Kernel& kernel) const {
    run(ctas, kernel, ranks_);
  }
  bool all_have_all() const {
    return std::ranges::all_of(whole_, [&](const auto& whole) { return whole == expected_; });
  }

  const RankLinks& links(int rank) const { return links_[rank]; }
  int fault(int rank) const { return faults_[rank]; }
  std::vector<uint32_t>& expected() { return expected_; }
  std::vector<uint32_t>& whole(int rank) { return whole_[rank]; }
  const RankColumns& columns() const { return columns_; }
  unsigned few_ctas() const { return static_cast<unsigned>((rows_ * width_ + kThreads - 1) / kThreads); }

 private:
  const int ranks_, rows_, width_;
  int32_t epoch_ = 4096;
  std::mt19937 rng_{11};
  std::vector<std::vector<uint64_t>> inboxes_;
  std::vector<std::vector<uint32_t>> arrived_, whole_, parts_;
  std::vector<uint32_t> expected_;
  RankColumns columns_;
  std::vector<RankLinks> links_;
  int faults_[kMostRanks] = {};
};

// The inbox's quarters are used again and again.
TEST(Gather, FewWords) {
  for (const int ranks : {2, 3, 8}) {
    Exchanges all(ranks, 3, 32 * 9);
    for (int index = 0; index < 6; ++index) {
      const std::vector<Gather> p = all.begin(index, index % 2 == 1);
      all.run(all.few_ctas(), [&](int rank) { gather_few_kernel(all.links(rank), p[rank]); });
      EXPECT_TRUE(all.all_have_all()) << ranks << " ranks, exchange " << index;
    }
  }
}

// A rank may have begun the next step while another one still polls for the last exchange of this one. So the
// two exchanges use other quarters, however many a step has.
TEST(Gather, NeighboursUseOtherQuarters) {
  for (uint32_t step = 1; step < 4; ++step) {
    for (uint32_t count = 1; count < 12; ++count) {
      const uint32_t first = step * kStepEpochs, last = first + count - 1;
      EXPECT_NE(inbox_slot(last, 0), inbox_slot(first + kStepEpochs, 0)) << count;
      EXPECT_NE(inbox_slot(last, 0), inbox_slot(last + 1, 0)) << count;
    }
  }
}

// How many exchanges; MOESAIC_EXCHANGES asks for more.
int exchanges_asked_for() {
  const char* const asked = std::getenv("MOESAIC_EXCHANGES");
  return asked != nullptr ? std::max(1, std::atoi(asked)) : 3'000;
}

// A rank that goes on by itself, exchange after exchange, and is late at random before and behind each. So
// one may have begun the next exchange, or the next step, while another one still polls.
class LateRank {
 public:
  LateRank(int rank, int ranks, std::vector<std::vector<uint64_t>>& inboxes)
      : rank_(rank), rng_(1 + rank), whole_(width(ranks)) {
    for (int r = 0; r <= ranks; ++r) gather_.columns.first[r] = kOwn * r;
    gather_.width = width(ranks), gather_.rows = 1, gather_.part_stride = gather_.width;
    gather_.whole.at[rank] = whole_.data(), gather_.part = whole_.data() + kOwn * rank;
    links_ = {.rank = rank, .ranks = ranks, .epoch = &epoch_, .fault = &fault_};
    for (int r = 0; r < ranks; ++r) links_.inbox.at[r] = inboxes[r].data();
  }
  // All threads of the CTA call it.
  void exchange(int n) {
    if (threadIdx.x == 0) begin(n);
    __syncthreads();
    gather_few_kernel(links_, gather_);
    __syncthreads();
    if (threadIdx.x == 0) end(n);
  }
  static constexpr int width(int ranks) { return kOwn * ranks; }
  int wrong() const { return wrong_; }
  int fault() const { return fault_; }

 private:
  static constexpr int kOwn = 8, kOfAStep = 5;  // an odd number: a step begins in either half of the inbox
  static uint32_t value(int n, int column) { return static_cast<uint32_t>(n * 1000 + column); }
  void be_late() {
    const unsigned choice = rng_() % 256;
    const unsigned looks = choice < 8 ? rng_() % 24 : choice < 64 ? rng_() % 4 : 0;
    for (unsigned i = 0; i < looks; ++i) on_host::ThreadBlock::mine().let_others();
  }
  void begin(int n) {
    be_late();
    epoch_ = static_cast<int32_t>((1 + n / kOfAStep) * kStepEpochs), gather_.index = n % kOfAStep;
    for (int c = 0; c < gather_.width; ++c) whole_[c] = c / kOwn == rank_ ? value(n, c) : 0xDEADu;
  }
  void end(int n) {
    for (int c = 0; c < gather_.width; ++c) wrong_ += whole_[c] != value(n, c);
    be_late();
  }

  const int rank_;
  std::mt19937 rng_;
  std::vector<uint32_t> whole_;
  int32_t epoch_ = 0;
  int fault_ = 0, wrong_ = 0;
  RankLinks links_;
  Gather gather_;
};

TEST(Gather, ManyWithRandomDelays) {
  sm90::clock_is_held = true;
  for (const int ranks : {2, 4}) {
    std::vector<std::vector<uint64_t>> inboxes(ranks, std::vector<uint64_t>(kInboxQuarters * kInboxWords));
    std::vector<std::unique_ptr<LateRank>> all;
    for (int rank = 0; rank < ranks; ++rank) all.push_back(std::make_unique<LateRank>(rank, ranks, inboxes));
    const int times = exchanges_asked_for();
    EXPECT_TRUE(on_host::run_at_once(
        1, LateRank::width(ranks), {},
        [&] {
          for (int n = 0; n < times; ++n) all[blockIdx.z]->exchange(n);
        },
        1, ranks));
    for (const auto& rank : all) EXPECT_EQ(rank->wrong() + rank->fault(), 0) << ranks;
  }
  sm90::clock_is_held = false;
}

TEST(Gather, ManyWords) {
  for (const int ranks : {2, 3, 8}) {
    Exchanges all(ranks, 50, 32 * 9);
    for (int index = 0; index < 4; ++index) {
      const std::vector<Gather> p = all.begin(index, index % 2 == 1);
      all.run(3, [&](int rank) {
        index < 2 ? gather_many_kernel<uint4>(all.links(rank), p[rank])
                  : gather_many_kernel<uint32_t>(all.links(rank), p[rank]);
      });
      EXPECT_TRUE(all.all_have_all()) << ranks << " ranks, exchange " << index;
    }
  }
}

// An exchange adds what the experts' kernels defer, as the norm would.
TEST(Gather, AddsWhatIsDeferred) {
  constexpr int kRows = 20, kWidth = 96, kTopK = 4;
  Exchanges all(2, kRows, kWidth);
  std::mt19937 rng(5);
  std::normal_distribution<float> normal;
  std::vector<float> expert_out(kRows * kTopK * kWidth), weights(kRows * kTopK);
  std::vector<int32_t> permuted(kRows * kTopK);
  for (float& v : expert_out) v = normal(rng);
  for (float& v : weights) v = normal(rng);
  for (size_t i = 0; i < permuted.size(); ++i) permuted[i] = static_cast<int32_t>(permuted.size() - 1 - i);
  for (const bool few : {true, false}) {
    std::vector<Gather> p = all.begin(few ? 0 : 1);
    for (Gather& g : p)
      g.deferred = {.expert_out = expert_out.data(),
                    .weights = weights.data(),
                    .permuted_rows = permuted.data(),
                    .top_k = kTopK};
    for (int i = 0; i < kRows * kWidth; ++i) {
      float sum = normal(rng);
      for (int rank = 0; rank < 2; ++rank) all.whole(rank)[i] = __float_as_uint(sum);
      for (int k = 0; k < kTopK; ++k) {
        const int pair = i / kWidth * kTopK + k;
        sum = fmaf(weights[pair], expert_out[permuted[pair] * kWidth + i % kWidth], sum);
      }
      all.expected()[i] = __float_as_uint(sum);
    }
    all.run(few ? all.few_ctas() : 2, [&](int rank) {
      few ? gather_few_kernel(all.links(rank), p[rank]) : gather_many_kernel<uint4>(all.links(rank), p[rank]);
    });
    EXPECT_TRUE(all.all_have_all()) << few;
  }
}

// A kernel that makes floats sends them; the next one takes the others'.
TEST(Gather, WordsThatAKernelSends) {
  constexpr int kRanks = 3, kRows = 2, kWidth = 160;
  Exchanges all(kRanks, kRows, kWidth);
  for (int index = 0; index < 3; ++index) {
    all.begin(index);
    all.run(1, [&](int rank) {
      const RankLinks& links = all.links(rank);
      WordSender sender{
          .epoch = links.epoch, .index = index, .width = kWidth, .first = all.columns().first[rank]};
      for (int r = 0; r < kRanks; ++r)
        if (r != rank) sender.inbox[sender.peers++] = links.inbox.at[r];
      const int own = all.columns().first[rank + 1] - sender.first;
      for (int i = threadIdx.x; i < kRows * own; i += kThreads) {
        const int row = i / own, column = i % own;
        send_word(sender, epoch_of(sender), row, column,
                  __uint_as_float(all.whole(rank)[row * kWidth + sender.first + column]));
      }
    });
    std::vector<Receive> p;
    for (int rank = 0; rank < kRanks; ++rank)
      p.push_back({.index = index,
                   .x = reinterpret_cast<float*>(all.whole(rank).data()),
                   .width = kWidth,
                   .rows = kRows,
                   .columns = all.columns()});
    all.run(1, [&](int rank) { receive_kernel(all.links(rank), p[rank]); });
    EXPECT_TRUE(all.all_have_all()) << index;
  }
}

// Thread r of the kernel waits for rank r.
TEST(Gather, AwaitsTheStoresOfAllRanks) {
  constexpr int kRanks = 3;
  Exchanges all(kRanks, 1, 32);
  bool stored[kRanks] = {}, seen[kRanks][kRanks] = {};
  all.run(1, [&](int rank) {
    const auto thread = threadIdx.x;
    if (thread == 0) stored[rank] = true;
    await_stores_kernel(all.links(rank), 5);
    if (thread < kRanks) seen[rank][thread] = stored[thread];
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(all.fault(rank), 0);
    for (const bool there : seen[rank]) EXPECT_TRUE(there);
  }
}

TEST(Gather, GivesUpWhereARankDoesNotCome) {
  for (const bool few : {true, false}) {
    Exchanges all(2, 2, 64);
    const std::vector<Gather> p = all.begin(0);
    all.run(
        1,
        [&](int rank) {
          few ? gather_few_kernel(all.links(rank), p[rank])
              : gather_many_kernel<uint4>(all.links(rank), p[rank]);
        },
        1);
    EXPECT_EQ(all.fault(0), kRankAway) << few;
  }
  Exchanges all(2, 2, 64);
  all.run(
      1, [&](int rank) { await_stores_kernel(all.links(rank), 0); }, 1);
  EXPECT_EQ(all.fault(0), kRankAway);
}

}  // namespace
}  // namespace moesaic::cuda
