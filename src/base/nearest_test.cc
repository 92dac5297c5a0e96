#include "base/nearest.h"

#include <gtest/gtest.h>

namespace moesaic {
namespace {

TEST(Nearest, CountsChanges) {
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("serve", "serve"), 0);
  EXPECT_EQ(edit_distance("sevre", "serve"), 1);  // neighbours swapped
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
}

TEST(Nearest, OnlyWhatIsNear) {
  const std::vector<std::string> known = {"run", "serve", "bench", "bench-serve"};
  EXPECT_EQ(nearest("rnu", known), "run");
  EXPECT_EQ(nearest("bnch", known), "bench");
  EXPECT_EQ(nearest("frobnicate", known), "");
  EXPECT_EQ(nearest("bench-all", known), "bench");
  EXPECT_EQ(nearest("stop_token_idz", {"stop", "stop_token_ids"}), "stop_token_ids");
  EXPECT_EQ(nearest(std::string(1 << 20, 'x'), known), "");
  EXPECT_EQ(did_you_mean("sevre", known), "; did you mean serve?");
  EXPECT_EQ(did_you_mean("x", known), "");
}

}  // namespace
}  // namespace moesaic
