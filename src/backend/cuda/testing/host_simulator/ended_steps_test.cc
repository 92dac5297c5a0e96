// Steps that end early, by an exception at any launch or an error of a copy: the next ones compute as ever.
#include "backend/cuda/testing/host_simulator/small_model.h"

namespace moesaic::cuda {
namespace {

using on_host::captures;

class EndedSteps : public testing::Test {
 protected:
  ~EndedSteps() override { captures() = {}; }

  // The model's last step again. In the simulator a replay computes nothing: no graph is kept.
  static Status again(Model& m, std::vector<float>& logits) {
    EXPECT_EQ(m.backend().alloc_kv({.full_pages = kPages, .window_pages = kPages, .logit_rows = 8}).message(),
              "");
    try {
      return forward(m.backend(), m.model_config(), m.batch(), logits);
    } catch (const std::bad_alloc&) {  // as the engine does
      static_cast<void>(m.backend().forget_steps());
      return Status(StatusCode::kOutOfMemory, "out of memory");
    }
  }
  // Lets each launch of a step fail in turn. Gives how many there are.
  static int end_at_each_launch(Model& m, bool captured) {
    const std::vector<float> want = m.step_of({0, 1}, 0, 4);
    for (int launch = 0;; ++launch) {
      std::vector<float> got(want.size());
      captures().no_begin = !captured, captures().launches_left = launch;
      const Status ended = again(m, got);
      const bool all = captures().launches_left >= 0;
      captures().no_begin = true, captures().launches_left = -1;
      EXPECT_EQ(captures().id, 0) << "a capture stays open after launch " << launch;
      // A step that was captured in vain is launched.
      EXPECT_EQ(ended.message(), all || captured ? "" : "out of memory") << launch;
      if (ended.ok()) {
        EXPECT_EQ(got, want) << launch;
      }
      EXPECT_EQ(again(m, got).message(), "");
      EXPECT_EQ(got, want) << "behind a step that ended at launch " << launch;
      if (all || HasFailure()) return launch;
    }
  }
};

// In the simulator launches run while they are captured: the host would answer them twice.
TEST_F(EndedSteps, AnExceptionLeavesNothingToTheNext) {
  for (const auto& [captured, host_layers] : {std::pair{false, 0}, {false, 2}, {true, 0}}) {
    SCOPED_TRACE(testing::Message() << "captured " << captured << ", host layers " << host_layers);
    Model m(host_layers);
    EXPECT_GT(end_at_each_launch(m, captured), 20);
  }
}

// The first copy of every other step fails, among them those that bring a hot expert. The same experts are
// chosen all the time, so that they come.
TEST_F(EndedSteps, AnExpertThatDidNotComeIsNotUsed) {
  Model device(0), host(kLayers, ExpertPlacement::kNever, 2);
  const std::vector<float> want = device.step_of({0, 1}, 0, 1);
  std::vector<float> got = host.step_of({0, 1}, 0, 1);
  for (int i = 0; i < 40; ++i) {
    captures().copies_left = 0;
    EXPECT_NE(again(host, got).message(), "");
    captures().copies_left = -1;
    ASSERT_EQ(again(host, got).message(), "");
    ASSERT_LT(relative_error(got, want), kTolerance) << i;
  }
}

}  // namespace
}  // namespace moesaic::cuda
