// Advice to the kernel about mapped memory.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace moesaic {

// Bytes of a page: 4096 on x86, up to 65536 on Arm.
inline uintptr_t page_bytes() { return static_cast<uintptr_t>(getpagesize()); }

// madvise() for the pages that hold these bytes. Linux reads no more for one request than the disk takes at a
// time or reads ahead by itself, 128 KB at the least: it forgets the rest of a longer one, so there are many.
inline void advise_pages(std::span<const std::byte> bytes, int advice) {
  constexpr uintptr_t kRequest = 128 << 10;
  const uintptr_t page = page_bytes();
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data()), end = begin + bytes.size();
  for (uintptr_t at = begin / page * page; at < end; at += kRequest)
    madvise(reinterpret_cast<void*>(at), std::min(kRequest, end - at), advice);
}

}  // namespace moesaic
