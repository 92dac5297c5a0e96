// Learns how long steps take by their rows, measured while they run.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace moesaic {

// Other programs slow a machine down for seconds, and a context that grows slows all steps. Steps of
// different sizes have to compare well, although each was measured at another time. So a step's seconds are a
// pace, which follows the machine quickly and is common to all sizes, times the size's own cost, which is
// learnt slowly. A single step counts for at most twice or half of what was expected.
class StepCosts {
 public:
  void add(int rows, double seconds);
  // Returns the time of a step of so many rows; 0: nothing was measured yet, or there are no rows. A size
  // that was measured less than kTrusted times, or not among the last kFresh steps, takes at most what its
  // neighbours say: so a bad measurement does not rule it out for good, and trying it again costs a step in
  // some hundred.
  double seconds(int rows) const;
  // True if that is known from a step of so many rows or fewer. Larger ones alone do not say what is saved by
  // leaving rows out.
  bool knows(int rows) const;
  // True if that is known from steps of so many rows, measured often enough and lately.
  bool is_measured(int rows) const {
    return rows > 0 && is_trusted(sizes_[static_cast<size_t>(size_of(rows))]);
  }

 private:
  static constexpr int kTrusted = 3, kFresh = 512;
  static constexpr int kSizes = 80;  // 1 to 16 rows, then eight for each doubling
  struct Size {
    double rows = 0, cost = 0;
    int count = 0;
    int64_t last = 0;  // the step of the last measurement
  };
  bool is_trusted(const Size& size) const { return size.count >= kTrusted && steps_ - size.last <= kFresh; }
  static int size_of(int rows);
  // The trusted sizes next to a size; null: there is none.
  struct Around {
    const Size *least = nullptr, *below = nullptr, *above = nullptr;
  };
  Around around(int size) const;
  static double slope(const Size& less, const Size& more);
  double own(const Size& size, int rows) const;
  // Guesses from the sizes around it.
  double guess(int rows) const;

  std::array<Size, kSizes> sizes_;
  double pace_ = 1;
  int64_t steps_ = 0;
};

}  // namespace moesaic
