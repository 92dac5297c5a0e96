// Values that the stand-ins for tensor cores read.
#pragma once

#include <array>
#include <vector>

#include "backend/cuda/testing/host_simulator/thread_block.h"
#include "mx/formats.h"

namespace moesaic::cuda::on_host {

// The value of each 16-bit code, as BF16 or F16.
inline const float* values_of(bool bf16) {
  static const auto tables = [] {
    std::array<std::vector<float>, 2> all;
    for (uint32_t bits = 0; bits < 1 << 16; ++bits) {
      all[0].push_back(mx::decode_f16(static_cast<uint16_t>(bits)));
      all[1].push_back(mx::decode_bf16(static_cast<uint16_t>(bits)));
    }
    return all;
  }();
  return tables[bf16 ? 1 : 0].data();
}
// The value of each byte as E4M3.
inline const float* e4m3_values() {
  static const auto table = [] {
    std::array<float, 256> all;
    for (int code = 0; code < 256; ++code) all[code] = mx::decode_e4m3(static_cast<uint8_t>(code));
    return all;
  }();
  return table.data();
}

}  // namespace moesaic::cuda::on_host
