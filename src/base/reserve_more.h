// Room for more elements of a vector, so that adding them needs no memory. It grows as push_back() lets it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace moesaic {

template <typename T>
void reserve_more(std::vector<T>& list, size_t more) {
  const size_t wanted = list.size() + more;
  if (wanted > list.capacity()) list.reserve(std::max(wanted, 2 * list.capacity()));
}

}  // namespace moesaic
