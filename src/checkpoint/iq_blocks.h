// ggml's block types whose elements come in groups out of a table (IQ1, IQ2 and IQ3): their values.
#pragma once

#include <cstdint>

namespace moesaic {

// One super-block to its 256 values. A scale that is not finite makes values that are not.
void decode_iq2_xxs(const uint8_t* block, float* out);
void decode_iq2_xs(const uint8_t* block, float* out);
void decode_iq2_s(const uint8_t* block, float* out);
void decode_iq3_xxs(const uint8_t* block, float* out);
void decode_iq3_s(const uint8_t* block, float* out);
void decode_iq1_s(const uint8_t* block, float* out);
void decode_iq1_m(const uint8_t* block, float* out);

}  // namespace moesaic
