#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "base/buffer.h"
#include "base/error.h"
#include "base/thread_pool.h"

namespace moesaic {
namespace {

TEST(ThreadPool, EveryItemOnce) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int round = 0; round < 300; ++round) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(round));
      pool.for_each(round, [&](int64_t i, int thread) {
        EXPECT_LT(thread, threads);
        seen[static_cast<size_t>(i)].fetch_add(1);
      });
      for (const auto& s : seen) EXPECT_EQ(s.load(), 1);
    }
  }
}

// A pool may end while its workers start, work or fall asleep. So many of them that somewhere the end comes
// between a worker's last look at the pool and its sleep.
TEST(ThreadPool, EndsWheneverItsOwnerEnds) {
  std::atomic<int> calls{0};
  for (int round = 0; round < 3000; ++round) {
    ThreadPool pool(5);
    pool.for_each(50, [&](int64_t, int) { ++calls; });
  }
  EXPECT_EQ(calls.load(), 50 * 3000);
}

TEST(Buffer, IsZeroedAndMovable) {
  auto buffer = Buffer::allocate(3 << 20);
  ASSERT_TRUE(buffer.ok());
  Buffer moved = std::move(buffer).value();
  EXPECT_EQ(moved.as<unsigned char>()[(3 << 20) - 1], 0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(moved.as<>()) % 64, 0u);
  Buffer empty;
  empty = std::move(moved);
  EXPECT_EQ(empty.bytes(), size_t{3 << 20});
}

TEST(Buffer, AbsurdSizeIsAnError) {
  const auto buffer = Buffer::allocate(size_t{1} << 60);
  ASSERT_FALSE(buffer.ok());
  EXPECT_EQ(buffer.status().code(), StatusCode::kOutOfMemory);
}

Result<int> half(int x) {
  if (x % 2 != 0) return invalid("{} is odd", x);
  return x / 2;
}
Status quarter(int x, int& out) {
  ASSIGN_OR_RETURN(const int h, half(x));
  ASSIGN_OR_RETURN(out, half(h));
  return {};
}

TEST(Status, PropagatesTheFirstError) {
  int out = 0;
  EXPECT_TRUE(quarter(8, out).ok());
  EXPECT_EQ(out, 2);
  EXPECT_EQ(quarter(6, out).message(), "3 is odd");
}

}  // namespace
}  // namespace moesaic
