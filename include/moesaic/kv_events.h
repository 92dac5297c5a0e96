// Changes of the prefix cache, for routers that send a prompt to the server that has its beginning cached.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

namespace moesaic {

// A block of the prefix cache: 32 tokens at a page boundary of a sequence. Its name is a hash of its tokens
// and of all before them, which is this model's own: the same tokens have another one in another process, but
// for one that opens the same folder (OpenOptions::kv_disk).
struct KvEvent {
  enum class Kind {
    kStored,   // the block's K and V can be found from here on
    kRemoved,  // they cannot any more
    kCleared   // no block can, after an error of the device
  };
  Kind kind = Kind::kCleared;
  uint64_t hash = 0;                     // kStored, kRemoved
  std::optional<uint64_t> parent = {};   // kStored: the block before; none: the first of a sequence
  std::span<const int32_t> tokens = {};  // kStored; valid during the call
};

// Called from the thread that steps, in the order of the changes. It must not throw and should be quick.
using KvWatcher = std::function<void(const KvEvent&)>;

}  // namespace moesaic
