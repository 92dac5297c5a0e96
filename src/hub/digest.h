// SHA-256, and the SHA-1 by which git names a file, from the system's libcrypto.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "moesaic/status.h"

namespace moesaic::hub {

// The sum of bytes that come piece by piece. Move-only.
class Digest {
 public:
  static Result<Digest> sha256();
  // The sum is that of git's object for a file of this size; the object begins with the size.
  static Result<Digest> git_blob(int64_t size);
  void add(std::string_view bytes);
  // Small letters. Nothing can be added behind it.
  std::string hex();

 private:
  struct Free {
    void operator()(void* context) const;
  };
  explicit Digest(void* context) : context_(context) {}
  static Result<Digest> make(bool is_sha256);
  std::unique_ptr<void, Free> context_;
};

}  // namespace moesaic::hub
