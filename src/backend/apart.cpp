#include "backend/apart.h"

#include <limits>

#include "base/error.h"

namespace moesaic {
namespace {

bool meet(const Extent& a, const Extent& b) {
  if (a.from == nullptr || b.from == nullptr || a.bytes == 0 || b.bytes == 0) return false;
  const auto x = reinterpret_cast<uintptr_t>(a.from), y = reinterpret_cast<uintptr_t>(b.from);
  return x < y ? y - x < static_cast<uintptr_t>(a.bytes) : x - y < static_cast<uintptr_t>(b.bytes);
}

}  // namespace

int64_t product_of(std::initializer_list<int64_t> factors) {
  int64_t all = 1;
  for (const int64_t factor : factors) {
    if (__builtin_mul_overflow(all, factor, &all)) return std::numeric_limits<int64_t>::max();
  }
  return all;
}

Status check_apart(const char* op, const Extent& written, std::initializer_list<Extent> read) {
  for (const Extent& one : read) {
    if (!meet(written, one)) continue;
    if (one.from == written.from) return invalid("{}: {} is {} itself", op, written.name, one.name);
    return invalid("{}: {} overlaps {}", op, written.name, one.name);
  }
  return {};
}

}  // namespace moesaic
