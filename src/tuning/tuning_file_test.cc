#include "tuning/tuning_file.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/temporary_folder.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

class Tuning : public testing::Test {
 protected:
  const TemporaryFolder temporary_;
  const std::string& folder_ = temporary_.path();
  const TuningKey key_{.device = "NVIDIA H200",
                       .driver = "13000",
                       .program = "0.1.0",
                       .experts = 32,
                       .top_k = 4,
                       .hidden = 2880,
                       .intermediate = 2880,
                       .configs = "decode, wgmma 16"};
  const std::vector<TunedStep> steps_ = {{1, "decode", 1.8e-5}, {16, "wgmma 16", 1.1e-4}};
};

TEST_F(Tuning, ReadsWhatWasWritten) {
  EXPECT_TRUE(read_tuning(folder_, key_).empty());
  ASSERT_TRUE(write_tuning(folder_ + "/deeper", key_, steps_).ok());
  const std::vector<TunedStep> got = read_tuning(folder_ + "/deeper", key_);
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[1].tokens, 16);
  EXPECT_EQ(got[1].config, "wgmma 16");
  EXPECT_DOUBLE_EQ(got[1].seconds, 1.1e-4);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ + "/deeper"), {}), 1) << "a temporary file is left";
}

TEST_F(Tuning, HoldsForItsKeyOnly) {
  ASSERT_TRUE(write_tuning(folder_, key_, steps_).ok());
  TuningKey other = key_;
  other.driver = "13010";
  EXPECT_TRUE(read_tuning(folder_, other).empty());
}

TEST_F(Tuning, AFolderThatCannotBeWrittenIsOneLine) {
  EXPECT_FALSE(write_tuning("", key_, steps_).ok());
  ASSERT_TRUE(write_tuning(folder_, key_, steps_).ok());  // a file where a folder would have to be
  EXPECT_EQ(write_tuning(tuning_path(folder_, key_), key_, steps_).code(), StatusCode::kIo);
}

TEST(NearestStep, IsNearestInRatio) {
  const std::vector<TunedStep> steps = {{2, "a", 0}, {8, "b", 0}, {64, "c", 0}};
  EXPECT_EQ(nearest_step(steps, 3)->config, "a");
  EXPECT_EQ(nearest_step(steps, 4)->config, "a");
  EXPECT_EQ(nearest_step(steps, 5)->config, "b");
  EXPECT_EQ(nearest_step(steps, 16)->config, "b");
  EXPECT_EQ(nearest_step(steps, 5000)->config, "c");
  EXPECT_EQ(nearest_step({}, 3), nullptr);
}

// The quickest kernel for 64 tokens need not be quick for 20, or for 1.
TEST(NearestStep, IsNoneFarFromAll) {
  const std::vector<TunedStep> steps = {{4, "a", 0}, {8, "b", 0}, {64, "c", 0}};
  EXPECT_EQ(nearest_step(steps, 20), nullptr);
  EXPECT_EQ(nearest_step(steps, 31), nullptr);
  EXPECT_EQ(nearest_step(steps, 32)->config, "c");
  EXPECT_EQ(nearest_step(steps, 1), nullptr);
}

}  // namespace
}  // namespace moesaic
