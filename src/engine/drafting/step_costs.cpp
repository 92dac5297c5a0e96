#include "drafting/step_costs.h"

#include <algorithm>
#include <cmath>

namespace moesaic {
namespace {

constexpr double kPaceRate = 0.1;
constexpr int kSizeMemory = 32;  // measurements of a size that count
// The share of one row's time that each row more takes, if one size alone was measured: between that of a
// dense model and that of experts that share nothing.
constexpr double kUnknownSlope = 0.2;

}  // namespace

int StepCosts::size_of(int rows) {
  if (rows <= 16) return rows - 1;
  return std::min(kSizes - 1, 15 + static_cast<int>(8 * std::log2(rows / 16.0)));
}

void StepCosts::add(int rows, double seconds) {
  if (rows < 1 || !(seconds > 0)) return;
  Size& size = sizes_[static_cast<size_t>(size_of(rows))];
  ++steps_;
  if (size.count == 0) {
    size = {.rows = static_cast<double>(rows), .cost = seconds / pace_, .count = 1, .last = steps_};
    return;
  }
  if (!is_trusted(size)) size.count = std::min(size.count, kTrusted);  // an old average counts for little
  size.last = steps_;
  const double off = std::clamp(seconds / (pace_ * size.cost), 0.5, 2.0);
  size.count = std::min(size.count + 1, kSizeMemory);
  size.rows += (rows - size.rows) / size.count;
  size.cost *= std::pow(off, 1.0 / size.count);
  if (size.count > kTrusted) pace_ *= std::pow(off, kPaceRate);
}

StepCosts::Around StepCosts::around(int size) const {
  Around a;
  for (int i = 0; i < kSizes; ++i) {
    const Size& s = sizes_[static_cast<size_t>(i)];
    if (i == size || !is_trusted(s)) continue;
    if (a.least == nullptr) a.least = &s;
    if (i < size) a.below = &s;
    if (i > size && a.above == nullptr) a.above = &s;
  }
  return a;
}

// Returns the cost of each row more between two sizes.
double StepCosts::slope(const Size& less, const Size& more) {
  return (more.cost - less.cost) / (more.rows - less.rows);
}

double StepCosts::guess(int rows) const {
  const auto [least, below, above] = around(size_of(rows));
  if (below == nullptr) return above == nullptr ? 0 : above->cost;
  double each = kUnknownSlope * below->cost / below->rows;
  if (above != nullptr) {
    each = slope(*below, *above);
  } else if (least != below) {
    each = std::max(0.0, slope(*least, *below));
  }
  return below->cost + each * (rows - below->rows);
}

// A size stands for several numbers of rows, and a row more than their mean costs something.
double StepCosts::own(const Size& size, int rows) const {
  if (rows == size.rows) return size.cost;
  const auto [least, below, above] = around(size_of(rows));
  double each = kUnknownSlope * size.cost / size.rows;
  if (below != nullptr && above != nullptr) {
    each = slope(*below, *above);
  } else if (least != nullptr && below != nullptr) {
    each = slope(*least, size);
  } else if (above != nullptr) {
    each = slope(size, *above);
  }
  return size.cost + std::max(0.0, each) * (rows - size.rows);
}

bool StepCosts::knows(int rows) const {
  if (rows < 1) return false;
  const int size = size_of(rows);
  return is_trusted(sizes_[static_cast<size_t>(size)]) || around(size).below != nullptr;
}

double StepCosts::seconds(int rows) const {
  if (rows < 1) return 0;
  const Size& size = sizes_[static_cast<size_t>(size_of(rows))];
  if (is_trusted(size)) return pace_ * own(size, rows);
  const double guessed = guess(rows);
  if (size.count == 0) return pace_ * guessed;
  return pace_ * (guessed > 0 ? std::min(size.cost, guessed) : size.cost);
}

}  // namespace moesaic
