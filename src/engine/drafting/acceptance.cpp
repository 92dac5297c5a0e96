#include "drafting/acceptance.h"

#include <algorithm>

namespace moesaic {
namespace {

constexpr double kFirst[kDraftGrades] = {0.3, 0.5, 0.7};  // for a draft's first token, before any is seen
constexpr int kPlaceMemory = 12;                          // observations that an average goes back
constexpr int kPriorWeight = 4;                           // observations that those of others count for

}  // namespace

Acceptance::Acceptance() {
  for (int grade = 0; grade < kDraftGrades; ++grade) averages_[grade][0].value = kFirst[grade];
}

void Acceptance::add(int grade, int place, bool right) {
  Average& a = averages_[grade][place];
  if (a.count == 0) a.value = at(grade, place);
  a.count = std::min(a.count + 1, kPlaceMemory);
  a.value += ((right ? 1 : 0) - a.value) / (a.count + 1);
}

double Acceptance::at(int grade, int place) const {
  while (place > 0 && averages_[grade][place].count == 0) --place;
  return averages_[grade][place].value;
}

std::vector<double> Acceptance::reach(int grade, int tokens) const {
  std::vector<double> chances;
  double chance = 1;
  for (int place = 0; place < tokens; ++place) chances.push_back(chance *= at(grade, place));
  return chances;
}

Acceptance Acceptance::as_prior() const {
  Acceptance prior = *this;
  for (auto& places : prior.averages_) {
    for (Average& a : places) a.count = std::min(a.count, kPriorWeight);
  }
  return prior;
}

}  // namespace moesaic
