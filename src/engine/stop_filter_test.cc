#include "engine/stop_filter.h"

#include <gtest/gtest.h>

#include <string>

namespace moesaic {
namespace {

TEST(StopFilter, AnySplitGivesTheSameText) {
  const std::string text = "ab STO STOP tail";
  for (size_t chunk = 1; chunk < text.size(); ++chunk) {
    StopFilter filter({"STOP", "never"});
    std::string shown;
    for (size_t i = 0; i < text.size(); i += chunk)
      shown += filter.push(std::string_view(text).substr(i, chunk));
    shown += filter.flush();
    EXPECT_EQ(shown, "ab STO ");
    EXPECT_TRUE(filter.stopped());
  }
  StopFilter open({"STOP"});
  EXPECT_EQ(open.push("a ST"), "a ");
  EXPECT_EQ(open.flush(), "ST");
}

}  // namespace
}  // namespace moesaic
