#include "backend/break_even.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace moesaic {
namespace {

// Rows that a host is asked for which takes 2 ms and 0.1 ms a row.
class Host {
 public:
  Result<double> operator()(int rows) {
    asked.push_back(rows);
    return 2e-3 + 1e-4 * rows;
  }
  std::vector<int> asked;
};
int find(double device_seconds, const BreakEvenRange& range, Host& host) {
  return break_even_rows(device_seconds, range, [&](int rows) { return host(rows); }).value();
}

TEST(BreakEven, IsWhereTheHostBeginsToTakeLonger) {
  for (const int rows : {17, 18, 31, 32, 33, 100, 511, 512, 1000}) {
    Host host;
    EXPECT_EQ(find(2e-3 + 1e-4 * (rows - 0.5), {.least = 16, .most = 1000}, host), rows) << rows;
  }
}

TEST(BreakEven, HasBothEnds) {
  Host slow, quick;
  EXPECT_EQ(find(1e-3, {.least = 9, .most = 64}, slow), 9);  // even the fewest take the host longer
  EXPECT_EQ(slow.asked, std::vector<int>({9}));
  EXPECT_EQ(find(1, {.least = 9, .most = 64}, quick), 65);
  EXPECT_EQ(quick.asked, std::vector<int>({9, 18, 36, 64}));
}

TEST(BreakEven, AFailureIsOne) {
  const auto fails = [](int) -> Result<double> { return invalid("no memory"); };
  EXPECT_EQ(break_even_rows(1, {.least = 1, .most = 2}, fails).status().message(), "no memory");
}

}  // namespace
}  // namespace moesaic
