#include "child_process.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace moesaic::app {
namespace {

constexpr double kLong = 60;  // s
bool always(double) { return true; }

TEST(ChildProcess, SaysHowItEnded) {
  const ChildOutcome good = run_child(
      kLong, [] { return 0; }, always);
  EXPECT_TRUE(good.ok());
  EXPECT_EQ(describe(good).substr(0, 4), "ok, ");
  const ChildOutcome bad = run_child(
      kLong, [] { return 3; }, always);
  EXPECT_FALSE(bad.ok());
  EXPECT_EQ(describe(bad).substr(0, 20), "exit status 3 after ");
  const ChildOutcome crashed = run_child(
      kLong, [] { return raise(SIGKILL); }, always);
  EXPECT_EQ(crashed.end, ChildEnd::kSignal);
  EXPECT_EQ(describe(crashed).substr(0, 24), "signal 9 (Killed) after ");
  const ChildOutcome threw = run_child(
      kLong, []() -> int { throw std::runtime_error("no"); }, always);
  EXPECT_EQ(threw.code, 1);
  EXPECT_EQ(threw.output, "moesaic: no\n");
}

TEST(ChildProcess, IsEndedAtItsLimitAndLeavesWhatItSaid) {
  const ChildOutcome hung = run_child(
      2,
      [] {
        std::puts("before");
        std::fflush(stdout);
        std::puts("never written");
        for (;;) pause();
        return 0;
      },
      always);
  EXPECT_EQ(hung.end, ChildEnd::kTimeOut);
  EXPECT_EQ(hung.output, "before\n");
  EXPECT_LT(hung.seconds, kLong);
}

// One that has closed its output is waited for all the same.
TEST(ChildProcess, IsEndedWithoutOutput) {
  const ChildOutcome hung = run_child(
      0.2,
      [] {
        close(STDOUT_FILENO), close(STDERR_FILENO);
        for (;;) pause();
        return 0;
      },
      always);
  EXPECT_EQ(hung.end, ChildEnd::kTimeOut);
}

TEST(ChildProcess, IsEndedWhereNobodyWaitsAnyLonger) {
  int asked = 0;
  const ChildOutcome outcome = run_child(
      kLong,
      [] {
        for (;;) pause();
        return 0;
      },
      [&](double) { return ++asked < 3; });
  EXPECT_EQ(outcome.end, ChildEnd::kInterrupted);
  EXPECT_EQ(asked, 3);
}

TEST(ChildProcess, OutputIsOnceThereAndTheEndOfIt) {
  std::printf("buffered before the fork ");
  const ChildOutcome outcome = run_child(
      kLong,
      [] {
        for (int i = 0; i < 200'000; ++i) std::printf("line %d\n", i);
        std::fprintf(stderr, "and an error\n");
        return 0;
      },
      always);
  EXPECT_TRUE(outcome.ok());
  EXPECT_LE(outcome.output.size(), size_t{256} << 10);
  EXPECT_NE(outcome.output.find("line 199999\n"), std::string::npos);
  EXPECT_NE(outcome.output.find("and an error\n"), std::string::npos);
  EXPECT_EQ(outcome.output.find("buffered"), std::string::npos);
}

// A pipe that a child of the child holds open keeps nobody waiting.
TEST(ChildProcess, ChildrenOfItsOwnAreNotWaitedFor) {
  constexpr int kGrandchild = 20;  // s
  const ChildOutcome outcome = run_child(
      kLong,
      [] {
        if (fork() == 0) {
          sleep(kGrandchild);
          _exit(0);
        }
        return 0;
      },
      always);
  EXPECT_TRUE(outcome.ok());
  EXPECT_LT(outcome.seconds, kGrandchild);
}

}  // namespace
}  // namespace moesaic::app
