// SipHash-2-4 with 128 bits (Aumasson and Bernstein, https://github.com/veorq/SipHash): a hash with a key.
// Who does not know the key can neither guess a text's hash nor find two texts with the same one.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace moesaic {

using HashKey = std::array<uint64_t, 2>;

struct Hash128 {
  uint64_t lo = 0, hi = 0;
  // NOLINTNEXTLINE(modernize-use-nullptr)
  auto operator<=>(const Hash128&) const = default;
};

class SipHash {
 public:
  explicit SipHash(const HashKey& key);
  // Adding several texts in turn gives the hash of their concatenation.
  SipHash& add(std::span<const std::byte> bytes);
  template <typename T>
  SipHash& add_value(const T& value) {
    static_assert(std::has_unique_object_representations_v<T>);
    return add(std::as_bytes(std::span(&value, 1)));
  }
  Hash128 finish() const;

 private:
  using State = std::array<uint64_t, 4>;
  static void round(State& v);
  static void take(State& v, uint64_t word);

  State v_;
  uint64_t tail_ = 0;  // the bytes of a word that is not full yet
  uint64_t bytes_ = 0;
};

// From the system's generator.
HashKey random_hash_key();

}  // namespace moesaic
