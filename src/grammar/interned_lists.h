// Tables that the machine fills, asks and drops very often. Each is a few arrays, so that its size is known
// in bytes, and freeing it takes no time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/reserve_more.h"

namespace moesaic::grammar {

inline uint64_t mixed(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 29);
}

// Lists of T, numbered from 0; equal lists have one number. T has ==, and hash_of(T).
template <typename T>
class InternedLists {
 public:
  InternedLists() : table_(16, kFree) {}

  int32_t size() const { return static_cast<int32_t>(ends_.size()); }
  size_t items() const { return items_.size(); }  // items of all lists together
  size_t bytes() const {
    return items_.size() * sizeof(T) + ends_.size() * sizeof(uint32_t) + table_.size() * sizeof(int32_t);
  }
  // Valid until the next add().
  std::span<const T> operator[](int32_t number) const {
    const uint32_t begin = number == 0 ? 0 : ends_[number - 1];
    return {items_.data() + begin, items_.data() + ends_[number]};
  }
  // The list's number, and whether it is new. The list must not be one of these.
  std::pair<int32_t, bool> add(std::span<const T> list) {
    if (ends_.size() * 2 >= table_.size()) grow();
    int32_t& place = table_[find(list)];
    if (place != kFree) return {place, false};
    place = append(list);
    return {place, true};
  }
  // A number of its own, also for a list that is there already, which add() goes on to find.
  int32_t append(std::span<const T> list) {
    reserve_more(ends_, 1);  // items without an end would belong to the next list
    items_.insert(items_.end(), list.begin(), list.end());
    ends_.push_back(static_cast<uint32_t>(items_.size()));
    return size() - 1;
  }

 private:
  static constexpr int32_t kFree = -1;

  static uint64_t hash(std::span<const T> list) {
    uint64_t h = list.size();
    for (const T& item : list) h = mixed(h, hash_of(item));
    return h ^ (h >> 32);
  }
  // Finds the place where the list is, or may be put.
  size_t find(std::span<const T> list) const {
    const size_t mask = table_.size() - 1;
    size_t at = hash(list) & mask;
    for (; table_[at] != kFree; at = (at + 1) & mask) {
      const auto other = (*this)[table_[at]];
      if (std::equal(list.begin(), list.end(), other.begin(), other.end())) break;
    }
    return at;
  }
  void grow() {
    const std::vector<int32_t> before = std::exchange(table_, std::vector<int32_t>(table_.size() * 2, kFree));
    for (const int32_t number : before)
      if (number != kFree) table_[find((*this)[number])] = number;
  }

  std::vector<T> items_;
  std::vector<uint32_t> ends_;  // where the lists end in items_
  std::vector<int32_t> table_;  // open addressing; a power of two
};

// A set of numbers that is cleared in no time.
class NumberSet {
 public:
  NumberSet() : slots_(64) {}

  // True where it is new.
  bool insert(uint64_t number) {
    if (size_ * 2 >= slots_.size()) grow();
    Slot& slot = slots_[find(number)];
    if (slot.round == round_) return false;
    slot = {number, round_};
    ++size_;
    return true;
  }
  void clear() {
    size_ = 0;
    if (++round_ == 0) slots_.assign(slots_.size(), {}), round_ = 1;
  }

 private:
  struct Slot {
    uint64_t number = 0;
    uint32_t round = 0;  // the round in which it was put here
  };

  size_t find(uint64_t number) const {
    const size_t mask = slots_.size() - 1;
    size_t at = mixed(0, number) & mask;
    while (slots_[at].round == round_ && slots_[at].number != number) at = (at + 1) & mask;
    return at;
  }
  void grow() {
    const std::vector<Slot> before = std::exchange(slots_, std::vector<Slot>(slots_.size() * 2));
    for (const Slot& slot : before)
      if (slot.round == round_) slots_[find(slot.number)] = slot;
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
  uint32_t round_ = 1;
};

}  // namespace moesaic::grammar
