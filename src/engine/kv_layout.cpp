#include "engine/kv_layout.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "base/error.h"

namespace moesaic {
namespace {

constexpr int kPageTokens = 32;

// Bytes that can be taken without swapping, as Linux estimates them; infinite where it does not say.
double available_memory() {
  std::ifstream in("/proc/meminfo");
  std::string key;
  for (double kilobytes = 0; in >> key >> kilobytes; in.ignore(64, '\n')) {
    if (key == "MemAvailable:") return kilobytes * 1024;
  }
  return std::numeric_limits<double>::infinity();
}

}  // namespace

Result<KvLayout> kv_layout(const ModelConfig& config, const KvDemand& d) {
  const auto pages = [](int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; };
  // A window layer holds the window behind the first row of a step and the step's own rows, off page
  // boundaries at both ends.
  const int64_t held = d.hold ? pages(config.window) + 1 : 0;
  const int64_t full = d.sequences * pages(d.context),
                window = d.sequences *
                         std::min(pages(d.context), pages(int64_t{config.window} + d.max_rows) + 2 + held);
  if (d.sequences < 1 || d.context < 1 || full > std::numeric_limits<int32_t>::max())
    return invalid("a KV cache of {} sequences of {} tokens", d.sequences, d.context);
  return KvLayout{.page_tokens = kPageTokens,
                  .full_pages = static_cast<int>(full),
                  .window_pages = static_cast<int>(window)};
}

double kv_bytes(const KvLayout& layout, const ModelConfig& config, const Backend& backend) {
  double pages = 0;
  for (const bool sliding : config.sliding) pages += sliding ? layout.window_pages : layout.full_pages;
  return pages * layout.page_tokens * backend.kv_token_bytes(config);
}

Status check_kv_memory(const KvLayout& layout, const ModelConfig& config, const Backend& backend) {
  const double needed = kv_bytes(layout, config, backend), free = available_memory();
  if (needed <= free) return {};
  return error(StatusCode::kOutOfMemory,
               "the KV cache takes {:.1f} GB, {:.1f} GB of memory are free; use a smaller context or fewer "
               "sequences",
               needed / 1e9, free / 1e9);
}

}  // namespace moesaic
