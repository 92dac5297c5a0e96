// Many exchanges between ranks that are late at random, on either side of an exchange. MOESAIC_EXCHANGES: how
// many; a rank that dies is then waited for as long as a model waits. Without it that and they take a second.
#include "backend/exchange.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "backend/delayed_experts.h"
#include "backend/parallel_backend.h"

namespace moesaic {
namespace {

constexpr int64_t kExchangedWidth = 256;

const char* asked() { return std::getenv("MOESAIC_EXCHANGES"); }
int exchanges() { return asked() != nullptr ? std::max(1, std::atoi(asked())) : 10'000; }

// The value that a rank writes to its columns, and must find in the other ranks'.
float value_of(int exchange, int64_t row, int64_t column) {
  return static_cast<float>(exchange % 4096 * 1000 + row * 300 + column);
}

// One after the other; false where one was wrong. With every rank's word now and then.
bool run_rank(Exchange& exchange, int rank, int ranks, int times) {
  std::mt19937 rng(static_cast<uint32_t>(1 + rank));
  const Range mine = RankShare{rank, ranks}.rows(kExchangedWidth);
  std::vector<float> x;
  bool right = true;
  for (int i = 0; i < times && right; ++i) {
    const int64_t rows = 1 + i % 3;
    x.assign(static_cast<size_t>(rows * kExchangedWidth), -1);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = mine.first; c < mine.first + mine.count; ++c)
        x[static_cast<size_t>(r * kExchangedWidth + c)] = value_of(i, r, c);
    delay(rng);
    exchange.gather(rank, {x.data() + mine.first, kExchangedWidth, rows, mine}, x.data(), kExchangedWidth);
    delay(rng);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < kExchangedWidth; ++c)
        right &= x[static_cast<size_t>(r * kExchangedWidth + c)] == value_of(i, r, c);
    if (i % 1000 != 999) continue;
    const std::vector<uint64_t> words = exchange.share(rank, static_cast<uint64_t>(i + rank));
    for (int other = 0; other < ranks; ++other)
      right &= words[static_cast<size_t>(other)] == static_cast<uint64_t>(i + other);
  }
  return right;
}

TEST(Exchange, ManyWithRandomDelays) {
  for (const int ranks : {2, 4}) {
    Exchange exchange(ranks, 60);
    std::atomic<int> right = 0;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] { right += run_rank(exchange, rank, ranks, exchanges()) ? 1 : 0; });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(right, ranks);
    EXPECT_EQ(exchange.failure().message(), "");
  }
}

// One of three ends in the middle: the others do not wait for it for longer than the limit.
TEST(Exchange, ARankThatDiesEndsAll) {
  constexpr int kRanks = 3, kBefore = 500;
  const double limit = asked() != nullptr ? kRankLimit : 0.3;
  Exchange exchange(kRanks, limit);
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back(
        [&, rank] { run_rank(exchange, rank, kRanks, rank == 1 ? kBefore : kBefore + 100'000); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::duration<double>(limit + 30));
  EXPECT_NE(exchange.failure().message().find("1 of 3 ranks did not come to an exchange"), std::string::npos)
      << exchange.failure().message();
}

}  // namespace
}  // namespace moesaic
