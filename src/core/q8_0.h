// GGUF's Q8_0 quantiser: 32 elements share an F16 scale of amax / 127, elements round to nearest even.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "mx/formats.h"

namespace moesaic {

// x, q: [32]. Returns the scale's F16 code. A block below F16's range is zero.
inline uint16_t quantize_q8_0(const float* x, int8_t* q) {
  float amax = 0;
  for (int i = 0; i < mx::kBlock; ++i) amax = std::max(amax, std::fabs(x[i]));
  const uint16_t scale = mx::encode_f16(amax / 127);
  const float inverse = scale != 0 ? 127 / amax : 0;
  for (int i = 0; i < mx::kBlock; ++i) q[i] = static_cast<int8_t>(std::lrint(x[i] * inverse));
  return scale;
}

}  // namespace moesaic
