#include "server/body.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace moesaic::server {
namespace {

constexpr size_t kSmall = 64 << 10;
constexpr size_t kLarge = 256 << 10;
// A client's most bytes, in multiples of the free ones: for large bodies and for others.
constexpr size_t kShare = 3, kSmallShare = 7;
constexpr size_t kMostGrowth = 16 << 20;  // beyond, doubling would only reserve addresses in vain

}  // namespace

openai::ApiError bodies_full() {
  return {.http = 503,
          .message = "the server holds as many bytes of requests and answers as it takes; try again",
          .type = "server_error",
          .code = "bodies_full",
          .retry_after = 1};
}

bool BodyBudget::take(const std::string& client, size_t bytes, size_t held) {
  if (!shares_.take(client, bytes, held + bytes > kLarge ? kShare : kSmallShare)) return false;
  in_use_ += bytes;
  return true;
}

void BodyBudget::give_back(const std::string& client, size_t bytes) {
  shares_.give_back(client, bytes);
  in_use_ -= bytes;
}

bool HeldBytes::hold(size_t bytes) {
  if (bytes > bytes_ && !budget_.take(client_, bytes - bytes_, bytes_)) return false;
  if (bytes < bytes_) budget_.give_back(client_, bytes_ - bytes);
  bytes_ = bytes;
  return true;
}

bool HeldBytes::hold_unread(size_t bytes) {
  constexpr size_t kFew = 64 << 10;
  return hold(bytes > kFew ? bytes : 0);
}

Body::Body(Body&& other) noexcept
    : budget_(other.budget_),
      client_(std::move(other.client_)),
      small_(std::exchange(other.small_, {})),
      pages_(std::exchange(other.pages_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      capacity_(std::exchange(other.capacity_, 0)) {}

bool Body::append(std::string_view bytes) {
  if (bytes.empty()) return true;
  if (!budget_->take(client_, bytes.size(), size())) return false;
  if (size() + bytes.size() <= kSmall) {
    try {
      small_.append(bytes);
      return true;
    } catch (const std::bad_alloc&) {
    }
  } else if (reserve(size() + bytes.size())) {
    std::memcpy(pages_ + size_, bytes.data(), bytes.size());
    size_ += bytes.size();
    return true;
  }
  budget_->give_back(client_, bytes.size());
  return false;
}

// Pages that nobody has written to take no memory.
bool Body::reserve(size_t bytes) {
  if (bytes <= capacity_) return true;
  const size_t capacity = (bytes + std::min(bytes, kMostGrowth)) / kSmall * kSmall + kSmall;
  void* const pages =
      pages_ == nullptr ? mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                        : mremap(pages_, capacity_, capacity, MREMAP_MAYMOVE);
  if (pages == MAP_FAILED) return false;
  if (pages_ == nullptr) {
    size_ = small_.size();
    std::memcpy(pages, small_.data(), size_);
    std::string().swap(small_);
  }
  pages_ = static_cast<char*>(pages);
  capacity_ = capacity;
  return true;
}

void Body::clear() {
  const size_t held = size();
  if (pages_ != nullptr) munmap(pages_, capacity_);
  pages_ = nullptr;
  size_ = capacity_ = 0;
  std::string().swap(small_);
  if (held > 0) budget_->give_back(client_, held);
}

}  // namespace moesaic::server
