#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef __SSE2__
#include <xmmintrin.h>
#endif

#include <atomic>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/buffer.h"
#include "base/error.h"
#include "base/huge_pages.h"
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

// A program may have set its threads to make zeros of denormal numbers; it keeps that.
#ifdef __SSE2__
TEST(ThreadPool, ItemsKnowDenormalNumbers) {
  constexpr unsigned kFlush = 0x8040;
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | kFlush);
  std::atomic<int> lost{0};
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    for (const int items : {1, 300}) {
      pool.for_each(items, [&](int64_t, int) {
        const volatile float denormal = 1e-40f;
        const float grown = denormal * 1e30f;
        if (grown == 0) ++lost;
      });
    }
  }
  EXPECT_EQ(_mm_getcsr() & kFlush, kFlush);
  _mm_setcsr(before);
  EXPECT_EQ(lost, 0);
}
#endif

// Also where threads begin with different items, of different sizes.
TEST(ThreadPool, EveryItemApartOnce) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 3000; ++round) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(round % 40));
      pool.for_each_by_node(round % 40, [&](int64_t i, int) {
        if (i % 11 == round % 11) std::this_thread::yield();
        seen[static_cast<size_t>(i)].fetch_add(1);
      });
      for (const auto& s : seen) ASSERT_EQ(s.load(), 1);
      std::atomic<int> plain{0};
      pool.for_each(round % 7, [&](int64_t, int) { ++plain; });
      ASSERT_EQ(plain.load(), round % 7);
    }
  }
}

// A thread's own items follow each other, while nobody takes them.
TEST(ThreadPool, ThreadsBeginApart) {
  ThreadPool pool(2);
  constexpr int64_t kItems = 100;
  bool both = false;
  for (int round = 0; round < 1000 && !both; ++round) {
    std::vector<int> by(kItems);
    pool.for_each_by_node(kItems, [&](int64_t i, int thread) {
      by[static_cast<size_t>(i)] = thread;
      std::this_thread::sleep_for(std::chrono::microseconds(5));
    });
    EXPECT_EQ(by.front(), 0);
    both = by[kItems / 2] == 1;
  }
  EXPECT_TRUE(both);
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

// A plan over nodes that need not exist: where a node's CPUs do not, its threads run anywhere.
ThreadPlan fake_plan(const std::vector<int>& threads, bool pin) {
  const std::vector<int> usable = current_affinity();
  ThreadPlan plan{.threads = 0, .cpus = 64, .pin = pin};
  for (const int t : threads) {
    const int node = static_cast<int>(plan.nodes.size());
    plan.nodes.push_back({.id = node, .cpus = {usable[node % usable.size()]}, .threads = t});
    plan.threads += t;
  }
  return plan;
}

TEST(ThreadPool, EveryItemOfEveryNodeOnce) {
  for (const auto& threads : {std::vector{1}, {1, 1}, {3, 1}, {2, 2}, {1, 2, 1, 3}}) {
    for (const bool pin : {false, true}) {
      ThreadPool pool(fake_plan(threads, pin));
      ASSERT_EQ(pool.nodes(), std::ssize(threads));
      for (int round = 0; round < 200; ++round) {
        // Ranges of any size: empty ones, and all items on one node.
        std::vector<int64_t> ends;
        for (int node = 0; node < pool.nodes(); ++node)
          ends.push_back((ends.empty() ? 0 : ends.back()) + (round * 7 + node * 13) % 5 * (round % 9));
        std::vector<std::atomic<int>> seen(static_cast<size_t>(ends.back()));
        pool.for_each_by_node(ends, [&](int64_t i, int thread) {
          EXPECT_LT(thread, pool.threads());
          seen[static_cast<size_t>(i)].fetch_add(1);
        });
        for (const auto& s : seen) EXPECT_EQ(s.load(), 1);
        std::atomic<int> plain{0};
        pool.for_each(round, [&](int64_t, int) { ++plain; });
        EXPECT_EQ(plain.load(), round);
      }
    }
  }
}

// Ranges are dealt by threads, and meet without a gap.
TEST(ThreadPool, NodesShareItemsByTheirThreads) {
  ThreadPool pool(fake_plan({3, 1, 4}, false));
  EXPECT_EQ(pool.node_begin(80, 0), 0);
  EXPECT_EQ(pool.node_begin(80, 1), 30);
  EXPECT_EQ(pool.node_begin(80, 2), 40);
  for (const int64_t items : {0, 1, 2, 7, 80, 1000003}) {
    EXPECT_EQ(pool.node_begin(items, pool.nodes()), items);
    for (int node = 0; node < pool.nodes(); ++node)
      EXPECT_LE(pool.node_begin(items, node), pool.node_begin(items, node + 1));
  }
}

// A node whose threads come late loses its items to the others: the loop ends although nobody of that node
// can take any. One thread holds its first item until all others are done.
TEST(ThreadPool, ItemsOfOtherNodesAreStolen) {
  ThreadPool pool(fake_plan({1, 1}, true));
  for (int round = 0; round < 50; ++round) {
    constexpr int64_t kItems = 40;
    std::atomic<int64_t> done{0};
    std::atomic<bool> held{false};
    const int64_t ends[] = {kItems / 2, kItems};
    pool.for_each_by_node(ends, [&](int64_t, int) {
      if (!held.exchange(true)) {
        // Only the other thread can do the rest, of both nodes. If it has not joined, this one may have to.
        for (int spins = 0; spins < 100000 && done.load() < kItems - 1; ++spins) std::this_thread::yield();
      }
      ++done;
    });
    EXPECT_EQ(done.load(), kItems);
  }
}

// More threads than CPUs: nobody spins while others want to compute.
TEST(ThreadPool, MoreThreadsThanCpus) {
  ThreadPlan plan{.threads = 32, .cpus = 1, .nodes = {{.threads = 32}}};
  ThreadPool pool(plan);
  std::atomic<int64_t> sum{0};
  for (int round = 0; round < 200; ++round) pool.for_each(64, [&](int64_t i, int) { sum += i; });
  EXPECT_EQ(sum.load(), 200 * 63 * 32);
}

// Whatever workers are told to fetch ahead, and however soon the memory goes away.
TEST(ThreadPool, ExpectedMemoryChangesNoLoop) {
  ThreadPlan plan = fake_plan({4}, false);
  plan.l2_bytes = 8 << 20;
  ThreadPool pool(plan);
  const std::vector<std::byte> kept(100003);
  std::atomic<int> calls{0};
  for (int round = 0; round < 2000; ++round) {
    const std::vector<std::byte> gone(static_cast<size_t>(round) * 512 + 1);
    const size_t parts = static_cast<size_t>(round) % (ThreadPool::kMostParts + 1);
    std::vector<const std::byte*> begins(parts, kept.data());
    if (parts > 0 && round % 2 == 0) begins.back() = gone.data();
    pool.expect(begins, round % 3 == 0 ? std::ssize(kept) : std::ssize(gone));
    pool.for_each_by_node(20, [&](int64_t, int) { ++calls; });
    pool.for_each(3, [&](int64_t, int) { ++calls; });
  }
  EXPECT_EQ(calls.load(), 2000 * 23);
}

// The caller's thread may run on the same CPUs afterwards as before.
TEST(ThreadPool, TheCallerIsNotPinned) {
  const std::vector<int> before = current_affinity();
  ThreadPool pool(fake_plan({2, 2}, true));
  std::atomic<int> calls{0};
  pool.for_each(100, [&](int64_t, int) { ++calls; });
  EXPECT_EQ(current_affinity(), before);
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
  for (const size_t bytes : {size_t{1} << 60, ~size_t{0}, ~size_t{0} - (1 << 20)}) {
    const auto buffer = Buffer::allocate(bytes);
    ASSERT_FALSE(buffer.ok());
    EXPECT_EQ(buffer.status().code(), StatusCode::kOutOfMemory);
  }
}

// Every size around the limits at which the mapping changes: whole, writable, and nothing of it left behind.
TEST(Buffer, LargeOnesBeginWithAHugePage) {
  constexpr size_t kMb = 1 << 20;
  for (const size_t bytes :
       {2 * kMb - 1, 2 * kMb, 2 * kMb + 1, 3 * kMb + 5, 32 * kMb - 1, 32 * kMb, 33 * kMb}) {
    uintptr_t begin = 0;
    {
      const Buffer buffer = Buffer::allocate(bytes).value();
      begin = reinterpret_cast<uintptr_t>(buffer.as<>());
      EXPECT_TRUE(bytes < 2 * kMb || begin % (2 * kMb) == 0) << bytes;
      buffer.as<unsigned char>()[0] = buffer.as<unsigned char>()[bytes - 1] = 1;
    }
    unsigned char resident;
    for (const size_t at : {size_t{0}, bytes - 1}) {
      EXPECT_NE(mincore(reinterpret_cast<void*>((begin + at) / 4096 * 4096), 1, &resident), 0) << bytes;
    }
  }
}

// The mappings that asked (hg in VmFlags) and no others.
TEST(HugePages, AreReadFromSmaps) {
  const std::string root = testing::TempDir() + "/moesaic_smaps_" + std::to_string(getpid());
  const auto write = [&](const std::string& folder, const std::string& name, const std::string& text) {
    std::filesystem::create_directories(root + folder);
    std::ofstream(root + folder + name) << text;
  };
  EXPECT_EQ(describe(read_huge_pages(root)), "not granted: this kernel has no transparent huge pages");
  write("/sys/kernel/mm/transparent_hugepage/", "enabled", "always [madvise] never\n");
  EXPECT_EQ(describe(read_huge_pages(root)), "none asked for: nothing in memory is larger than one");
  const char* smaps =
      "7f00-7f01 rw-p 00000000 00:00 0 \nSize: 1 kB\nRss:            8000000 kB\n"
      "AnonHugePages:  7900000 kB\nVmFlags: rd wr mr mw me ac sd hg\n"
      "7f02-7f03 rw-p 00000000 00:00 0 [heap]\nRss: 500 kB\nAnonHugePages: 400 kB\nVmFlags: rd wr ac\n"
      "7f04-7f05 rw-p 00000000 00:00 0 \nRss: 1000000 kB\nAnonHugePages: {} kB\nVmFlags: rd hg wr\n";
  write("/proc/self/", "smaps", fmt::format(fmt::runtime(smaps), 900000));
  write("/sys/kernel/mm/transparent_hugepage/", "enabled", "always [madvise] never\n");
  EXPECT_EQ(describe(read_huge_pages(root)), "9.0 of 9.2 GB");
  write("/sys/kernel/mm/transparent_hugepage/", "enabled", "always madvise [never]\n");
  EXPECT_EQ(describe(read_huge_pages(root)), "9.0 of 9.2 GB");  // granted before somebody forbade it
  write("/proc/self/", "smaps", "Rss: 1000 kB\nAnonHugePages: 0 kB\nVmFlags: hg\n");
  EXPECT_EQ(describe(read_huge_pages(root)),
            "not granted: /sys/kernel/mm/transparent_hugepage/enabled is never");
  write("/sys/kernel/mm/transparent_hugepage/", "enabled", "always [madvise] never\n");
  EXPECT_EQ(describe(read_huge_pages(root)), "0.0 of 1.0 MB; the kernel found no free ones for the rest");
  std::filesystem::remove_all(root);
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
