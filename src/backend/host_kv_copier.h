// The copier of a backend whose cache is in host memory: read_kv_page() and write_kv_page() touch nothing but
// the page.
#pragma once

#include "backend/backend.h"

namespace moesaic {

class HostKvCopier final : public KvCopier {
 public:
  explicit HostKvCopier(Backend& backend) : backend_(backend) {}
  Status read(std::span<const int> layers, int32_t page, std::span<std::byte> bytes) override {
    return each(layers, bytes,
                [&](int layer, auto part) { return backend_.read_kv_page(layer, page, part); });
  }
  Status write(std::span<const int> layers, int32_t page, std::span<const std::byte> bytes) override {
    return each(layers, bytes,
                [&](int layer, auto part) { return backend_.write_kv_page(layer, page, part); });
  }

 private:
  template <typename Bytes, typename Copy>
  Status each(std::span<const int> layers, Bytes bytes, const Copy& copy) {
    const size_t size = backend_.kv_page_bytes();
    for (size_t i = 0; i < layers.size(); ++i)
      if (Status status = copy(layers[i], bytes.subspan(i * size, size)); !status.ok()) return status;
    return {};
  }
  Backend& backend_;
};

}  // namespace moesaic
