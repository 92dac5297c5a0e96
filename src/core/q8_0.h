// GGUF's Q8_0 quantiser: 32 elements share an F16 scale of amax / 127, elements round to nearest even.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "mx/block.h"

namespace moesaic {

inline constexpr uint16_t kF16Nan = 0x7E00;

// x, q: [32]. Returns the scale's F16 code. A block below F16's range is zero. One that holds a NaN or an
// infinity gets the NaN scale, as in mx/block.h, and one above the range an infinite one: no number is made
// of them in silence.
inline uint16_t quantize_q8_0(const float* x, int8_t* q) {
  const float amax = mx::block_amax(x);
  if (mx::is_nan(amax)) {
    std::fill_n(q, mx::kBlock, int8_t{0});
    return kF16Nan;
  }
  const uint16_t scale = mx::encode_f16(amax / 127);
  const float inverse = scale != 0 ? 127 / amax : 0;
  for (int i = 0; i < mx::kBlock; ++i) q[i] = static_cast<int8_t>(std::lrint(x[i] * inverse));
  return scale;
}

}  // namespace moesaic
