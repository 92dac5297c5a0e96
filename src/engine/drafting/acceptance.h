// Keeps how often drafted tokens are the right ones, by place in the draft and by the draft's grade.
#pragma once

#include <array>
#include <vector>

#include "drafting/drafter.h"

namespace moesaic {

// It has running averages. A place's average counts only drafts whose tokens before it were all right.
class Acceptance {
 public:
  Acceptance();

  void add(int grade, int place, bool right);
  // Returns the chances that a draft's first 1, 2, .. `tokens` tokens are all right.
  std::vector<double> reach(int grade, int tokens) const;
  // A new request begins with the same averages, but they count for few observations.
  Acceptance as_prior() const;

 private:
  struct Average {
    double value = 0;
    int count = 0;  // observations that it counts for
  };
  // A place that was never seen is taken to be like the one before it.
  double at(int grade, int place) const;

  std::array<std::array<Average, kMostDraft>, kDraftGrades> averages_;
};

}  // namespace moesaic
