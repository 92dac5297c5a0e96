// An open file of the system; it is closed with this.
#pragma once

#include <unistd.h>

#include <utility>

namespace moesaic {

class Descriptor {
 public:
  explicit Descriptor(int file = -1) : file_(file) {}  // negative: none
  ~Descriptor() {
    if (file_ >= 0) close(file_);
  }
  Descriptor(Descriptor&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }
  int get() const { return file_; }

 private:
  int file_;
};

}  // namespace moesaic
