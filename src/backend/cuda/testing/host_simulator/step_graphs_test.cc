// Tests of step/step_graphs.h: some steps are replayed, and one that cannot be captured still runs.
#include "backend/cuda/step/step_graphs.h"

#include <gtest/gtest.h>

#include <thread>

#include "backend/cuda/runtime/features.h"
#include "backend/cuda/testing/host_simulator/captures.h"

namespace moesaic::cuda {
namespace {

using on_host::captures;

class StepGraphsTest : public testing::Test {
 protected:
  StepGraphsTest() { captures() = {}; }
  ~StepGraphsTest() override {
    graphs_.drop();
    EXPECT_EQ(captures().executables, 0);
    captures() = {};
    set_early_launches(true);
  }
  // Gives how often the step's ops ran or were recorded.
  int step(const StepShape& shape, const Status& ops = {}) {
    graphs_.begin(shape, nullptr);
    int given = graphs_.replaying() ? 0 : 1;
    if (!graphs_.end_capture(shape, ops, nullptr)) ++given;
    EXPECT_EQ(captures().id, 0);  // no capture stays open
    EXPECT_TRUE(graphs_.launch(shape, nullptr).ok());
    return given;
  }
  static StepShape rows(int count) { return {.rows = count, .sequences = count}; }

  StepWait wait_{1};
  StepGraphs graphs_{wait_};
};

TEST_F(StepGraphsTest, AShapeIsCapturedOnce) {
  EXPECT_EQ(step(rows(4)), 1);
  EXPECT_EQ(step(rows(4)), 0);
  EXPECT_EQ(step(rows(5)), 1);
  EXPECT_EQ(captures().launches, 3);
  EXPECT_EQ(graphs_.captures().made, 2);
}

TEST_F(StepGraphsTest, AShapeOfManyRowsIsCapturedOnItsSecondVisit) {
  EXPECT_EQ(step(rows(100)), 1);
  EXPECT_EQ(captures().launches, 0);
  EXPECT_EQ(step(rows(100)), 1);
  EXPECT_EQ(step(rows(100)), 0);
  EXPECT_EQ(captures().launches, 2);
}

TEST_F(StepGraphsTest, TheOldestIsDropped) {
  for (int kv_splits = 0; kv_splits < 513; ++kv_splits) {
    StepShape shape = rows(1);
    shape.kv_splits = kv_splits;
    step(shape);
  }
  EXPECT_EQ(captures().executables, 512);
  EXPECT_EQ(step(rows(1)), 1);
}

TEST_F(StepGraphsTest, WithoutMemoryTheOthersMakeRoom) {
  step(rows(1)), step(rows(2));
  captures().failing_instantiations = 1;
  EXPECT_EQ(step(rows(3)), 1);
  EXPECT_EQ(captures().executables, 1);
  EXPECT_EQ(graphs_.captures().failed, 0);
}

// It runs without a graph, and nobody tries to capture it again.
TEST_F(StepGraphsTest, AShapeThatCannotBeCapturedRunsWithoutAGraph) {
  set_early_launches(false);
  captures().failing_instantiations = 2;
  EXPECT_EQ(step(rows(1)), 2);
  EXPECT_EQ(step(rows(1)), 1);
  captures().no_begin = true;
  EXPECT_EQ(step(rows(2)), 1);
  captures().no_begin = false, captures().no_end = true;
  EXPECT_EQ(step(rows(3)), 2);
  captures().no_end = false;
  EXPECT_EQ(step(rows(4), Status(StatusCode::kInternal, "launch: not while it is captured")), 2);
  EXPECT_EQ(captures().launches, 0);
  EXPECT_EQ(graphs_.captures().failed, 4);
  EXPECT_EQ(step(rows(4)), 1);
  EXPECT_EQ(step(rows(5)), 1);
  EXPECT_EQ(captures().launches, 1);
  EXPECT_TRUE(graphs_.retire("the KV cache", nullptr).ok());  // it moved: all may be tried again
  EXPECT_EQ(step(rows(4)), 1);
  EXPECT_EQ(captures().launches, 2);
}

// Launches that may start early are dropped before the graph is. A lack of memory is not their fault.
TEST_F(StepGraphsTest, ACaptureThatFailsIsTriedWithPlainLaunches) {
  set_early_launches(true);
  ASSERT_TRUE(early_launches());
  captures().failing_instantiations = 2;
  EXPECT_EQ(step(rows(1)), 2);
  EXPECT_TRUE(early_launches());
  const Status refused(StatusCode::kInternal, "launch: invalid resource handle");
  for (int i = 0; i < 2; ++i) EXPECT_EQ(step(rows(2), refused), 2);
  EXPECT_TRUE(early_launches());
  graphs_.begin(rows(2), nullptr);
  EXPECT_FALSE(early_launches());
  std::thread([] { EXPECT_TRUE(early_launches()); }).join();  // another model's
  EXPECT_TRUE(graphs_.end_capture(rows(2), {}, nullptr));
  EXPECT_FALSE(early_launches());
  EXPECT_EQ(step(rows(2)), 0);
  EXPECT_EQ(captures().launches, 1);
}

// Neither what fails once, such as a kernel's loading, nor what fails with plain launches, too, turns early
// ones off.
TEST_F(StepGraphsTest, ACaptureThatFailsForOtherReasonsLeavesEarlyLaunches) {
  set_early_launches(true);
  EXPECT_EQ(step(rows(1), Status(StatusCode::kOutOfMemory, "launch: out of memory")), 2);
  EXPECT_EQ(step(rows(1)), 1);
  EXPECT_EQ(step(rows(1)), 0);
  captures().no_end = true;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(rows(2)), 2);
  EXPECT_EQ(step(rows(2)), 1);  // not captured any more
  EXPECT_TRUE(early_launches());
}

TEST_F(StepGraphsTest, AFailureThatIsMadeGoodIsForgotten) {
  set_early_launches(true);
  const Status refused(StatusCode::kInternal, "launch: out of memory");
  EXPECT_EQ(step(rows(1), refused), 2);
  EXPECT_EQ(step(rows(1)), 1);
  for (int i = 1; i <= 512; ++i) step({.rows = 1, .sequences = 1, .kv_splits = i});
  EXPECT_EQ(step(rows(1), refused), 2);
  EXPECT_EQ(step(rows(1)), 1);
  EXPECT_TRUE(early_launches());
}

// An exception ends it before its capture ends.
TEST_F(StepGraphsTest, AStepThatIsNotEndedLeavesNoPlainLaunches) {
  set_early_launches(true);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(step(rows(1), Status(StatusCode::kInternal, "launch: refused")), 2);
  graphs_.begin(rows(1), nullptr);
  EXPECT_FALSE(early_launches());
  graphs_.skip();
  captures().id = 0;
  EXPECT_TRUE(early_launches());
}

}  // namespace
}  // namespace moesaic::cuda
