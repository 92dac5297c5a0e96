// What is left of float values once a format has kept them.
#pragma once

#include <span>

#include "core/weights.h"

namespace moesaic {

// To BF16, or in blocks of 32 to Q8_0 (q8_0.h), MXFP8 or MXFP4 (mx/block.h), of which x then holds whole
// ones. Other formats leave x as it is.
void round_to(Format format, std::span<float> x);

}  // namespace moesaic
