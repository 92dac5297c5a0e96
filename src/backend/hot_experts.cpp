#include "backend/hot_experts.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace moesaic {
namespace {

// An expert comes for one that is chosen less than half as often, and not for a few choices that may be
// chance: a copy costs as much of the host's memory bandwidth as one choice does.
constexpr uint32_t kLeastGain = 8;
bool worth_it(uint32_t comes, uint32_t leaves) {
  return comes >= 2 * uint64_t{leaves} && comes >= leaves + kLeastGain;
}

}  // namespace

ExpertUse::ExpertUse(int layers, int experts)
    : experts_(experts), counts_(static_cast<size_t>(layers) * static_cast<size_t>(experts)) {}

void ExpertUse::count(int layer, std::span<const int32_t> ids) {
  for (const int32_t id : ids) {
    std::atomic<uint32_t>& n = counts_[at(layer, id >= 0 ? id : computed_there(id))];
    n.store(n.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  counted_.store(counted_.load(std::memory_order_relaxed) + static_cast<uint32_t>(ids.size()),
                 std::memory_order_relaxed);
}

void ExpertUse::age() {
  for (std::atomic<uint32_t>& n : counts_)
    n.store(n.load(std::memory_order_relaxed) / 2, std::memory_order_relaxed);
  counted_.store(0, std::memory_order_relaxed);
}

void ExpertUse::begin_with(std::span<const uint32_t> counts) {
  for (size_t i = 0; i < counts_.size(); ++i) counts_[i].store(counts[i], std::memory_order_relaxed);
}

HotExperts::HotExperts(const ExpertUse& use, int slots)
    : layers_(use.layers()),
      experts_(use.experts()),
      slots_(slots),
      slot_of_(static_cast<size_t>(layers_) * static_cast<size_t>(experts_), -1),
      expert_in_(static_cast<size_t>(layers_) * static_cast<size_t>(slots)) {
  std::vector<int> order(static_cast<size_t>(experts_));
  for (int layer = 0; layer < layers_; ++layer) {
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater(), [&](int expert) { return use.of(layer, expert); });
    for (int slot = 0; slot < slots; ++slot)
      enter({.layer = layer, .slot = slot, .comes = order[static_cast<size_t>(slot)]});
  }
}

int HotExperts::slot_of(int layer, int expert) const {
  return slot_of_[static_cast<size_t>(layer) * static_cast<size_t>(experts_) + static_cast<size_t>(expert)];
}
int HotExperts::expert_in(int layer, int slot) const {
  return expert_in_[static_cast<size_t>(layer) * static_cast<size_t>(slots_) + static_cast<size_t>(slot)];
}

void HotExperts::leave(const Exchange& e) {
  const auto layer = static_cast<size_t>(e.layer);
  slot_of_[layer * static_cast<size_t>(experts_) + static_cast<size_t>(e.leaves)] = -1;
  expert_in_[layer * static_cast<size_t>(slots_) + static_cast<size_t>(e.slot)] = -1;
}
void HotExperts::enter(const Exchange& e) {
  const auto layer = static_cast<size_t>(e.layer);
  slot_of_[layer * static_cast<size_t>(experts_) + static_cast<size_t>(e.comes)] = e.slot;
  expert_in_[layer * static_cast<size_t>(slots_) + static_cast<size_t>(e.slot)] = e.comes;
}

std::optional<HotExperts::Exchange> HotExperts::choose(const ExpertUse& use) const {
  std::optional<Exchange> best;
  uint32_t best_gain = 0;
  for (int layer = 0; layer < layers_; ++layer) {
    Exchange e{.layer = layer, .slot = -1, .comes = -1};
    uint32_t least = 0, most = 0;
    for (int slot = 0; slot < slots_; ++slot) {
      const int expert = expert_in(layer, slot);
      if (expert < 0) continue;
      const uint32_t n = use.of(layer, expert);
      if (e.slot < 0 || n < least) least = n, e.slot = slot, e.leaves = expert;
    }
    for (int expert = 0; expert < experts_; ++expert) {
      const uint32_t n = use.of(layer, expert);
      if (slot_of(layer, expert) < 0 && n > most) most = n, e.comes = expert;
    }
    if (e.slot < 0 || e.comes < 0 || !worth_it(most, least) || most - least <= best_gain) continue;
    best = e, best_gain = most - least;
  }
  return best;
}

}  // namespace moesaic
