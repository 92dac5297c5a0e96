// Experts of host layers that are on the device as well, because they are chosen often: the device computes
// them while the CPU computes the others. Which ones those are follows what is chosen.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace moesaic {

// In ids that a device hands over: an expert that it computes itself.
constexpr int32_t computed_there(int32_t expert) { return -1 - expert; }

// How often each expert was chosen of late. One thread counts, another one reads and ages.
class ExpertUse {
 public:
  ExpertUse(int layers, int experts);
  // ids: negative ones as computed_there() makes them.
  void count(int layer, std::span<const int32_t> ids);
  uint32_t of(int layer, int expert) const {
    return counts_[at(layer, expert)].load(std::memory_order_relaxed);
  }
  uint32_t counted() const { return counted_.load(std::memory_order_relaxed); }  // since the last age()
  // Halves the counts: what was long ago weighs less. A choice that is counted meanwhile may be lost.
  void age();
  std::vector<uint32_t> counts() const { return {counts_.begin(), counts_.end()}; }  // [layers, experts]
  // Takes such counts over, of an earlier run, before anything is counted.
  void begin_with(std::span<const uint32_t> counts);
  int layers() const { return static_cast<int>(std::ssize(counts_)) / experts_; }
  int experts() const { return experts_; }

 private:
  size_t at(int layer, int expert) const {
    return static_cast<size_t>(layer) * static_cast<size_t>(experts_) + static_cast<size_t>(expert);
  }
  int experts_;
  std::vector<std::atomic<uint32_t>> counts_;
  std::atomic<uint32_t> counted_{0};
};

// The places on the device, so many for each layer, and who is in them: at first the experts that were chosen
// most, and those with the lowest numbers of equal ones.
class HotExperts {
 public:
  HotExperts(const ExpertUse& use, int slots);

  struct Exchange {
    int layer = 0, slot = 0, leaves = 0, comes = 0;  // leaves, comes: experts
  };
  // The exchange that saves the CPU most, if one saves enough to be worth the copy.
  std::optional<Exchange> choose(const ExpertUse& use) const;
  // Between leave() and enter() the slot is nobody's.
  void leave(const Exchange& e);
  void enter(const Exchange& e);
  int expert_in(int layer, int slot) const;  // -1: none
  int slot_of(int layer, int expert) const;  // -1: none
  int slots() const { return slots_; }

 private:
  int layers_, experts_, slots_;
  std::vector<int> slot_of_;    // [layers, experts]
  std::vector<int> expert_in_;  // [layers, slots]
};

}  // namespace moesaic
