#include <cstring>

#include "backend/idle_backend.h"
#include "base/error.h"
#include "base/file_cache.h"
#include "engine/kv_state.h"

using namespace moesaic;

namespace {

constexpr size_t kPageBytes = 16;
constexpr size_t kChecksumAt = 72, kHeaderBytes = 80;

// Keeps pages and computes nothing.
class Pages final : public IdleBackend {
 public:
  explicit Pages(size_t pages) : bytes_(pages * kPageBytes) {}
  std::string kv_page_format() const override { return "fuzz"; }
  size_t kv_page_bytes() const override { return kPageBytes; }
  Status read_kv_page(int layer, int32_t page, std::span<std::byte> bytes) override {
    std::memcpy(bytes.data(), at(layer, page), bytes.size());
    return {};
  }
  Status write_kv_page(int layer, int32_t page, std::span<const std::byte> bytes) override {
    std::memcpy(at(layer, page), bytes.data(), bytes.size());
    return {};
  }

 private:
  std::byte* at(int layer, int32_t page) {
    const size_t from = (static_cast<size_t>(layer) * 8 + static_cast<size_t>(page)) * kPageBytes;
    MOESAIC_CHECK(page >= 0 && page < 8 && from + kPageBytes <= bytes_.size());
    return bytes_.data() + from;
  }

  std::vector<std::byte> bytes_;
};

const ModelConfig kConfig{
    .layers = 2, .vocab = 256, .window = 8, .sliding = {true, false}, .max_context = 64};

// With it the bytes are past the check that random changes do not survive.
void repair_checksum(std::string& bytes) {
  if (bytes.size() < kHeaderBytes) return;
  std::memset(bytes.data() + kChecksumAt, 0, sizeof(uint64_t));
  const std::string_view all = bytes;
  const uint64_t sum = fnv1a(all.substr(kHeaderBytes), fnv1a(all.substr(0, kHeaderBytes)));
  std::memcpy(bytes.data() + kChecksumAt, &sum, sizeof sum);
}

void expect_unused(const KvPages& pages) {
  pages.check({});
  MOESAIC_CHECK(pages.full_use().used == 0 && pages.window_use().used == 0);
}

}  // namespace

// Saved KV caches, each a length of one byte and that many times four bytes, loaded one after the other into
// a cache that is too small for all. What was loaded is what is saved again.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const KvLayout layout{.page_tokens = 4, .full_pages = 8, .window_pages = 8};
  Pages backend(16);
  KvPages pages(layout, kConfig.window);
  const KvState state{.pages = &pages, .backend = &backend, .config = &kConfig, .fingerprint = 1};
  while (size > 0) {
    const size_t length = std::min(size - 1, size_t{data[0]} * 4);
    std::string bytes(reinterpret_cast<const char*>(data) + 1, length);
    data += 1 + length, size -= 1 + length;
    repair_checksum(bytes);
    const auto tokens = read_saved(state, bytes);
    const bool loaded = tokens.ok() && load_prefix(state, bytes, tokens.value()).ok();
    expect_unused(pages);
    if (!loaded) continue;
    MOESAIC_CHECK(bytes.size() <= most_saved_bytes(state));
    MOESAIC_CHECK(cached_prefix(state, tokens.value()) == std::ssize(tokens.value()));
    const auto saved = save_prefix(state, tokens.value());
    MOESAIC_CHECK(saved.ok() && saved.value().size() == bytes.size());
    expect_unused(pages);
  }
  return 0;
}
