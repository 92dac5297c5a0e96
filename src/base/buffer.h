// An owned block of zeroed memory, aligned to 64 bytes or better; from 2 MB on it begins at a multiple of
// that and asks for huge pages.
#pragma once

#include <cstddef>
#include <utility>

#include "moesaic/status.h"

namespace moesaic {

class Buffer {
 public:
  Buffer() = default;
  ~Buffer();
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  // kOutOfMemory with the size when the system has no such block.
  static Result<Buffer> allocate(size_t bytes);

  template <typename T = std::byte>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace moesaic
