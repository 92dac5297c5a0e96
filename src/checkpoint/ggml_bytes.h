// Numbers in ggml's blocks, which are not aligned.
#pragma once

#include <cstdint>
#include <cstring>

#include "mx/block.h"

namespace moesaic {

inline uint16_t half_at(const uint8_t* p) {
  uint16_t code;
  std::memcpy(&code, p, sizeof code);
  return code;
}
inline float f16_at(const uint8_t* p) { return mx::decode_f16(half_at(p)); }
inline uint32_t word_at(const uint8_t* p) {
  uint32_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

}  // namespace moesaic
