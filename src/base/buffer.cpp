#include "base/buffer.h"

#include <sys/mman.h>

#include "base/error.h"

namespace moesaic {
namespace {
constexpr size_t kHugePage = 2 << 20;
}

Buffer::~Buffer() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Result<Buffer> Buffer::allocate(size_t bytes) {
  Buffer buffer;
  if (bytes == 0) return buffer;
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED)
    return error(StatusCode::kOutOfMemory, "cannot allocate {:.2f} GB of memory", bytes / 1e9);
  // First touch of 4 KB pages costs more than the copy into them: 12 GB load 3 times faster with huge pages.
  if (bytes >= kHugePage) madvise(p, bytes, MADV_HUGEPAGE);
  buffer.data_ = p;
  buffer.bytes_ = bytes;
  return buffer;
}

}  // namespace moesaic
