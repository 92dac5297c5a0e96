// Operators on a caller's memory write while they read: results may share no memory with what is read.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "moesaic/status.h"

namespace moesaic {

// A part of memory; nothing where it is null or has no bytes.
struct Extent {
  const char* name;
  const void* from;
  int64_t bytes;
};
// The greatest number there is where the product is more: such an extent is all behind `from`.
int64_t product_of(std::initializer_list<int64_t> factors);
// "paged_attention: out overlaps q", where it does.
Status check_apart(const char* op, const Extent& written, std::initializer_list<Extent> read);

}  // namespace moesaic
