#include "core/accepted_prefix.h"

#include <gtest/gtest.h>

#include <vector>

namespace moesaic {
namespace {

TEST(AcceptedPrefix, EndsAtTheFirstTokenThatDiffers) {
  const std::vector<int32_t> draft = {4, 5, 6}, none;
  const auto accepted = [&](const std::vector<int32_t>& sampled) { return accepted_prefix(draft, sampled); };
  EXPECT_EQ(accepted({4, 5, 6, 7}), 3);
  EXPECT_EQ(accepted({4, 5, 6}), 3);
  EXPECT_EQ(accepted({4, 5}), 2) << "the third is not known yet";
  EXPECT_EQ(accepted({4, 9, 6, 7}), 1) << "what follows a wrong token is not accepted";
  EXPECT_EQ(accepted({9, 5, 6}), 0);
  EXPECT_EQ(accepted({}), 0);
  EXPECT_EQ(accepted_prefix(none, draft), 0);
}

}  // namespace
}  // namespace moesaic
