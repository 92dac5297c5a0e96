#include "speculation/step_costs.h"

#include <algorithm>
#include <cmath>

namespace moesaic {
namespace {

constexpr double kPaceRate = 0.1;
constexpr int kSizeMemory = 32;  // measurements of a size that count
// Of one row's time, for each row more, where one size alone was measured. Between what a dense model takes
// and what experts do that share nothing.
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
  if (!is_trusted(size)) size.count = std::min(size.count, kTrusted);  // what is old counts for little
  size.last = steps_;
  const double off = std::clamp(seconds / (pace_ * size.cost), 0.5, 2.0);
  size.count = std::min(size.count + 1, kSizeMemory);
  size.rows += (rows - size.rows) / size.count;
  size.cost *= std::pow(off, 1.0 / size.count);
  if (size.count > kTrusted) pace_ *= std::pow(off, kPaceRate);
}

double StepCosts::guess(int rows) const {
  const int own = size_of(rows);
  const Size *below = nullptr, *above = nullptr, *least = nullptr;
  for (int i = 0; i < kSizes; ++i) {
    const Size& s = sizes_[static_cast<size_t>(i)];
    if (i == own || !is_trusted(s)) continue;
    if (least == nullptr) least = &s;
    if (i < own) below = &s;
    if (i > own && above == nullptr) above = &s;
  }
  if (below == nullptr) return above == nullptr ? 0 : above->cost;
  if (above != nullptr)
    return below->cost + (above->cost - below->cost) * (rows - below->rows) / (above->rows - below->rows);
  double slope = kUnknownSlope * below->cost / below->rows;
  if (least != below) slope = std::max(0.0, (below->cost - least->cost) / (below->rows - least->rows));
  return below->cost + slope * (rows - below->rows);
}

double StepCosts::seconds(int rows) const {
  const Size& size = sizes_[static_cast<size_t>(size_of(rows))];
  if (is_trusted(size)) return pace_ * size.cost;
  const double guessed = guess(rows);
  if (size.count == 0) return pace_ * guessed;
  return pace_ * (guessed > 0 ? std::min(size.cost, guessed) : size.cost);
}

}  // namespace moesaic
