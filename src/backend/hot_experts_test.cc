#include "backend/hot_experts.h"

#include <gtest/gtest.h>

namespace moesaic {
namespace {

std::vector<int32_t> times(int n, int32_t id) { return std::vector<int32_t>(static_cast<size_t>(n), id); }

TEST(ExpertUse, CountsAndAges) {
  ExpertUse use(2, 4);
  use.count(1, std::vector<int32_t>{3, computed_there(3), 0, computed_there(1), 3});
  EXPECT_EQ(use.of(1, 3), 3u);
  EXPECT_EQ(use.of(1, 1), 1u);
  EXPECT_EQ(use.of(0, 3), 0u);
  EXPECT_EQ(use.counted(), 5u);
  use.age();
  EXPECT_EQ(use.of(1, 3), 1u);
  EXPECT_EQ(use.counted(), 0u);
}

TEST(HotExperts, TheMostChosenComesForTheLeastChosen) {
  ExpertUse use(2, 6);
  HotExperts hot(use, 2);
  EXPECT_EQ(hot.slot_of(1, 1), 1);
  EXPECT_EQ(hot.slot_of(1, 2), -1);
  EXPECT_FALSE(hot.choose(use).has_value());
  use.count(0, times(40, 5)), use.count(0, times(10, 0)), use.count(0, times(3, 1));
  use.count(1, times(60, 4)), use.count(1, times(30, 0)), use.count(1, times(50, 1));
  // Layer 1's would save 30 choices, layer 0's 37.
  const HotExperts::Exchange e = hot.choose(use).value();
  EXPECT_EQ(e.layer, 0);
  EXPECT_EQ(e.slot, 1);
  EXPECT_EQ(e.leaves, 1);
  EXPECT_EQ(e.comes, 5);
  hot.leave(e);
  EXPECT_EQ(hot.slot_of(0, 1), -1);
  EXPECT_EQ(hot.expert_in(0, 1), -1);
  EXPECT_EQ(hot.choose(use)->layer, 0);  // for the other slot, while this one is nobody's
  hot.enter(e);
  EXPECT_EQ(hot.slot_of(0, 5), 1);
  EXPECT_EQ(hot.choose(use)->layer, 1);
}

TEST(HotExperts, StayWhereAnotherIsHardlyMoreWanted) {
  ExpertUse use(1, 3);
  HotExperts hot(use, 1);
  use.count(0, times(100, 0)), use.count(0, times(150, 1));
  EXPECT_FALSE(hot.choose(use).has_value());
  use.count(0, times(60, 1));
  EXPECT_EQ(hot.choose(use)->comes, 1);
  ExpertUse few(1, 3);
  few.count(0, times(7, 2));
  EXPECT_FALSE(hot.choose(few).has_value());
}

TEST(HotExperts, BeginWithTheMostChosen) {
  ExpertUse use(2, 5);
  use.begin_with(std::vector<uint32_t>{0, 7, 2, 9, 7, 0, 0, 0, 0, 1});
  EXPECT_EQ(use.counts(), (std::vector<uint32_t>{0, 7, 2, 9, 7, 0, 0, 0, 0, 1}));
  EXPECT_EQ(use.counted(), 0u);
  const HotExperts hot(use, 2);
  EXPECT_EQ(hot.expert_in(0, 0), 3);
  EXPECT_EQ(hot.expert_in(0, 1), 1);
  EXPECT_EQ(hot.expert_in(1, 0), 4);
  EXPECT_EQ(hot.expert_in(1, 1), 0);
  EXPECT_EQ(hot.slot_of(0, 4), -1);
}

}  // namespace
}  // namespace moesaic
