#include "engine/kv_state.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "base/file_cache.h"

namespace moesaic {
namespace {

struct Header {
  std::array<char, 8> magic;
  uint32_t version, page_tokens;
  uint64_t fingerprint;
  std::array<char, 32> format;
  uint32_t layers, page_bytes;
  uint64_t tokens, checksum;
};
static_assert(sizeof(Header) == 80 && std::is_trivially_copyable_v<Header>);
static_assert(std::endian::native == std::endian::little);

constexpr std::array<char, 8> kMagic = {'M', 'O', 'E', 'S', 'A', 'I', 'C', 'K'};
constexpr uint32_t kVersion = 1;

Header header_of(const KvState& s, size_t tokens) {
  Header h{.magic = kMagic,
           .version = kVersion,
           .page_tokens = static_cast<uint32_t>(s.pages->page_tokens()),
           .fingerprint = s.fingerprint,
           .format = {},
           .layers = static_cast<uint32_t>(s.config->layers),
           .page_bytes = static_cast<uint32_t>(s.backend->kv_page_bytes()),
           .tokens = tokens,
           .checksum = 0};
  const std::string format = s.backend->kv_page_format();
  std::copy_n(format.begin(), std::min(format.size(), h.format.size() - 1), h.format.begin());
  return h;
}

uint64_t checksum_of(Header h, std::string_view body) {
  h.checksum = 0;
  const auto bytes = std::bit_cast<std::array<char, sizeof h>>(h);
  return fnv1a(body, fnv1a({bytes.data(), bytes.size()}));
}

Status check_possible(const KvState& s) {
  if (s.pages == nullptr)
    return error(StatusCode::kUnsupported, "the prefix cache is off (--no-prefix-cache)");
  if (!s.backend->kv_page_format().empty()) return {};
  return error(StatusCode::kUnsupported, "{}: its KV cache cannot be saved or loaded",
               s.backend->caps().name);
}

// The pages that a layer has among a prefix's.
std::span<const int32_t> pages_of(const KvState& s, const PageTable& table, int layer) {
  if (!s.config->sliding[layer]) return table.full;
  const auto first = std::find_if(table.window.begin(), table.window.end(), [](int32_t p) { return p >= 0; });
  return {first, table.window.end()};
}

// Returns the bytes of a prefix of whole pages in all layers.
size_t pages_bytes(const KvState& s, size_t tokens) {
  const int full = static_cast<int>(tokens) / s.pages->page_tokens();
  const int window = full - s.pages->reach(static_cast<int>(tokens));
  size_t count = 0;
  for (const bool sliding : s.config->sliding) count += static_cast<size_t>(sliding ? window : full);
  return count * s.backend->kv_page_bytes();
}

// Holds the pages of its table until it is destroyed.
struct HeldPages {
  HeldPages(KvPages& of, const std::string& salt) : pages(of), table{.salt = salt} {}
  ~HeldPages() { pages.release(table); }
  HeldPages(const HeldPages&) = delete;
  HeldPages& operator=(const HeldPages&) = delete;
  // Holds what the prefix cache has of `tokens`, all of them included.
  int adopt(std::span<const int32_t> tokens) {
    std::vector<int32_t> longer(tokens.begin(), tokens.end());
    longer.push_back(0);  // KvPages::adopt() leaves the last token out
    return pages.adopt(table, longer);
  }

  KvPages& pages;
  PageTable table;
};

Status read_pages(const KvState& s, const PageTable& table, std::span<std::byte> out) {
  const size_t bytes = s.backend->kv_page_bytes();
  for (int layer = 0; layer < s.config->layers; ++layer) {
    for (const int32_t page : pages_of(s, table, layer)) {
      RETURN_IF_ERROR(s.backend->read_kv_page(layer, page, out.first(bytes)));
      out = out.subspan(bytes);
    }
  }
  return {};
}

Status write_pages(const KvState& s, const PageTable& table, std::span<const std::byte> in) {
  const size_t bytes = s.backend->kv_page_bytes();
  for (int layer = 0; layer < s.config->layers; ++layer) {
    for (const int32_t page : pages_of(s, table, layer)) {
      RETURN_IF_ERROR(s.backend->write_kv_page(layer, page, in.first(bytes)));
      in = in.subspan(bytes);
    }
  }
  return {};
}

Result<std::string> save(const KvState& s, std::span<const int32_t> tokens, const PageTable& table) {
  const size_t pages_at = sizeof(Header) + tokens.size_bytes();
  std::string bytes(pages_at + pages_bytes(s, tokens.size()), 0);
  std::memcpy(bytes.data() + sizeof(Header), tokens.data(), tokens.size_bytes());
  RETURN_IF_ERROR(read_pages(s, table, std::as_writable_bytes(std::span(bytes).subspan(pages_at))));
  const Header header = header_of(s, tokens.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

Status check_header(const KvState& s, const Header& h) {
  const Header own = header_of(s, h.tokens);
  if (h.magic != kMagic) return invalid("a saved KV cache: this is something else");
  if (h.version != kVersion)
    return error(StatusCode::kUnsupported, "a saved KV cache of version {}: this program reads version {}",
                 h.version, kVersion);
  if (h.fingerprint != own.fingerprint || h.layers != own.layers)
    return invalid("a saved KV cache of another model, or of other formats of its weights");
  if (h.format != own.format || h.page_tokens != own.page_tokens || h.page_bytes != own.page_bytes)
    return invalid("a saved KV cache of another device or KV format: here it is '{}'",
                   s.backend->kv_page_format());
  if (h.tokens == 0 || h.tokens % h.page_tokens != 0 ||
      h.tokens > static_cast<uint64_t>(s.config->max_context))
    return invalid("a saved KV cache that claims {} tokens: it is damaged", h.tokens);
  return {};
}

}  // namespace

void seal_saved(std::string& bytes) {
  Header header{};
  std::memcpy(&header, bytes.data(), sizeof header);
  header.checksum = checksum_of(header, std::string_view(bytes).substr(sizeof header));
  std::memcpy(bytes.data(), &header, sizeof header);
}

Result<std::vector<int32_t>> read_saved(const KvState& s, std::string_view bytes) {
  RETURN_IF_ERROR(check_possible(s));
  Header h{};
  if (bytes.size() < sizeof h) return invalid("a saved KV cache: {} bytes are no header", bytes.size());
  std::memcpy(&h, bytes.data(), sizeof h);
  RETURN_IF_ERROR(check_header(s, h));
  const std::string_view body = bytes.substr(sizeof h);
  const size_t expected = h.tokens * sizeof(int32_t) + pages_bytes(s, h.tokens);
  if (body.size() != expected)
    return invalid(
        "a saved KV cache: {} bytes behind the header, its {} tokens take {}; it is cut off or damaged",
        body.size(), h.tokens, expected);
  if (checksum_of(h, body) != h.checksum)
    return invalid("a saved KV cache: its checksum is wrong; it is damaged");
  std::vector<int32_t> tokens(h.tokens);
  std::memcpy(tokens.data(), body.data(), h.tokens * sizeof(int32_t));
  const auto outside = [&](int32_t t) { return t < 0 || t >= s.config->vocab; };
  if (std::any_of(tokens.begin(), tokens.end(), outside))
    return invalid("a saved KV cache: it has a token outside the vocabulary");
  return tokens;
}

size_t most_saved_bytes(const KvState& s) {
  if (s.pages == nullptr) return sizeof(Header);
  const auto tokens = static_cast<size_t>(s.pages->shareable(s.config->max_context));
  return sizeof(Header) + tokens * sizeof(int32_t) + pages_bytes(s, tokens);
}

int cached_prefix(const KvState& s, std::span<const int32_t> tokens, const std::string& salt) {
  return s.pages == nullptr ? 0 : HeldPages(*s.pages, salt).adopt(tokens);
}

Result<std::string> save_prefix(const KvState& s, std::span<const int32_t> tokens, const std::string& salt) {
  RETURN_IF_ERROR(check_possible(s));
  HeldPages held(*s.pages, salt);
  const int cached = held.adopt(tokens);
  if (cached > 0) return save(s, tokens.first(cached), held.table);
  return error(StatusCode::kNotFound,
               "the prefix cache holds no whole page of these {} tokens: run a request that begins with them "
               "first",
               tokens.size());
}

Status load_prefix(const KvState& s, std::string_view bytes, std::span<const int32_t> tokens,
                   const std::string& salt) {
  const auto count = static_cast<int>(tokens.size());
  if (cached_prefix(s, tokens, salt) == count) return {};
  HeldPages held(*s.pages, salt);
  if (!s.pages->reserve_computed(held.table, count))
    return error(StatusCode::kOutOfMemory,
                 "the KV cache has no room for {} more tokens: enlarge it (--kv-tokens)", count);
  const std::string_view pages = bytes.substr(sizeof(Header) + tokens.size_bytes());
  if (s.loaded) s.loaded(held.table.full);
  RETURN_IF_ERROR(write_pages(s, held.table, std::as_bytes(std::span(pages))));
  s.pages->cache_blocks(held.table, tokens);
  return {};
}

}  // namespace moesaic
