// The K and V of a sequence's beginning as bytes, and back into the prefix cache, so that a later request
// that begins with these tokens computes only what follows them.
//
// Layout, little-endian:
//   0  char[8] "MOESAICK"    8  u32 version, 1      12 u32 tokens of a page
//   16 u64 fingerprint       24 char[32] Backend::kv_page_format(), padded with zeros
//   56 u32 layers            60 u32 bytes of a page  64 u64 tokens, whole pages
//   72 u64 checksum: fnv1a of all other bytes        80 i32[tokens]
//   then by layer, by page: the page. Sliding layers have only the pages that the window behind the last
//   token reaches.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "engine/kv_pages.h"

namespace moesaic {

// An engine's cache and its backend. It is used between steps, on the thread that drives the backend.
struct KvState {
  KvPages* pages = nullptr;  // null: there is no prefix cache, and everything fails
  Backend* backend = nullptr;
  const ModelConfig* config = nullptr;
  uint64_t fingerprint = 0;  // covers the weights and what changes K and V
  // Called with the pages of the full-attention layers that were loaded. It may be empty.
  std::function<void(std::span<const int32_t>)> loaded = {};
};

// Returns how many of these tokens a request that begins with them would find, if it had at least one more.
// salt: of the requests.
int cached_prefix(const KvState& state, std::span<const int32_t> tokens, const std::string& salt = {});
// Returns the longest beginning of `tokens` that is in the prefix cache, to be sealed. kNotFound: none of it
// is.
Result<std::string> save_prefix(const KvState& state, std::span<const int32_t> tokens,
                                const std::string& salt = {});
// No saved state of this model is larger.
size_t most_saved_bytes(const KvState& state);
// Puts the checksum into it: seconds for each GB, on any thread.
void seal_saved(std::string& bytes);
// Returns the tokens of a saved state. Bytes that are damaged, of another model, format or version, or that
// claim impossible sizes are refused. Takes as long as sealing, on any thread.
Result<std::vector<int32_t>> read_saved(const KvState& state, std::string_view bytes);
// The tokens of what was read are in the prefix cache then, where requests with this salt find them.
// kOutOfMemory: the cache has not so many free pages.
Status load_prefix(const KvState& state, std::string_view bytes, std::span<const int32_t> tokens,
                   const std::string& salt = {});

}  // namespace moesaic
