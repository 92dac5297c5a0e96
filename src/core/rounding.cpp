#include "core/rounding.h"

#include "core/q8_0.h"
#include "mx/block.h"

namespace moesaic {
namespace {

void round_to_bf16(std::span<float> x) {
  for (float& v : x) v = mx::decode_bf16(mx::encode_bf16(v));
}
void round_to_q8_0(std::span<float> x) {
  for (size_t i = 0; i < x.size(); i += mx::kBlock) {
    int8_t q[mx::kBlock];
    const float scale = mx::decode_f16(quantize_q8_0(x.data() + i, q));
    for (size_t j = 0; j < mx::kBlock; ++j) x[i + j] = scale * q[j];
  }
}
void round_to_mxfp8(std::span<float> x) {
  for (size_t i = 0; i < x.size(); i += mx::kBlock) {
    uint8_t codes[mx::kBlock];
    const uint8_t scale = mx::quantize_mxfp8(x.data() + i, codes);
    mx::dequantize_mxfp8(codes, scale, x.data() + i);
  }
}
void round_to_mxfp4(std::span<float> x) {
  for (size_t i = 0; i < x.size(); i += mx::kBlock) {
    uint8_t codes[mx::kPackedBlock];
    const uint8_t scale = mx::quantize_mxfp4(x.data() + i, codes);
    mx::dequantize_mxfp4(codes, scale, x.data() + i);
  }
}

}  // namespace

void round_to(Format format, std::span<float> x) {
  switch (format) {
    case Format::kBF16:
      return round_to_bf16(x);
    case Format::kQ8_0:
      return round_to_q8_0(x);
    case Format::kMxfp8:
      return round_to_mxfp8(x);
    case Format::kMxfp4:
      return round_to_mxfp4(x);
    default:
      return;
  }
}

}  // namespace moesaic
