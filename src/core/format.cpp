#include "core/format.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/q8_0.h"
#include "mx/block.h"

namespace moesaic {
namespace {

template <typename T>
T load_as(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}
const uint8_t* bytes_at(const std::byte* p) { return reinterpret_cast<const uint8_t*>(p); }
uint8_t* bytes_at(std::byte* p) { return reinterpret_cast<uint8_t*>(p); }

// Plain formats: a block is an element. Infinity and NaN have the largest magnitudes, which are not negative
// as signed integers.
float same(float x) { return x; }

template <typename Word, auto kDecode>
void decode_plain(const StoredBlocks& from, float* out) {
  for (int64_t i = 0; i < from.count; ++i) out[i] = kDecode(load_as<Word>(from.data + i * from.stride));
}
template <auto kEncode>
void encode_plain(const float* x, int64_t blocks, std::byte* data, std::byte* /*scales*/) {
  for (int64_t i = 0; i < blocks; ++i) {
    const auto code = kEncode(x[i]);
    std::memcpy(data + i * static_cast<int64_t>(sizeof code), &code, sizeof code);
  }
}
template <typename Int, Int kExponent>
bool finite_plain(const StoredBlocks& b) {
  constexpr Int kMagnitude = std::numeric_limits<Int>::max();
  Int top = 0;
  const auto add = [&](const std::byte* p) {
    const auto magnitude = static_cast<Int>(load_as<Int>(p) & kMagnitude);
    top = magnitude > top ? magnitude : top;
  };
  // The loop over elements that lie side by side is one that compilers vectorise.
  if (b.stride == sizeof(Int)) {
    for (int64_t i = 0; i < b.count; ++i) add(b.data + i * static_cast<int64_t>(sizeof(Int)));
  } else {
    for (int64_t i = 0; i < b.count; ++i) add(b.data + i * b.stride);
  }
  return top < kExponent;
}

// Calls run(block of data, scale) until it is false.
template <typename Run>
bool each_block(const StoredBlocks& b, const Run& run) {
  for (int64_t i = 0; i < b.count; ++i) {
    const uint8_t scale = b.scales == nullptr ? uint8_t{0} : std::to_integer<uint8_t>(b.scales[i]);
    if (!run(bytes_at(b.data + i * b.stride), scale, i)) return false;
  }
  return true;
}

constexpr int kQ8Block = 2 + mx::kBlock, kMxfp4GgufBlock = 1 + mx::kPackedBlock;
constexpr int16_t kF16Exponent = 0x7C00, kBF16Exponent = 0x7F80;
constexpr int32_t kF32Exponent = 0x7F800000;

void decode_q8_0(const StoredBlocks& from, float* out) {
  each_block(from, [&](const uint8_t* block, uint8_t, int64_t b) {
    uint16_t scale;
    std::memcpy(&scale, block, sizeof scale);
    const float factor = mx::decode_f16(scale);
    for (int i = 0; i < mx::kBlock; ++i)
      out[b * mx::kBlock + i] = factor * static_cast<float>(static_cast<int8_t>(block[2 + i]));
    return true;
  });
}
void encode_q8_0(const float* x, int64_t blocks, std::byte* data, std::byte* /*scales*/) {
  for (int64_t b = 0; b < blocks; ++b, data += kQ8Block) {
    const uint16_t scale = quantize_q8_0(x + b * mx::kBlock, reinterpret_cast<int8_t*>(data + 2));
    std::memcpy(data, &scale, sizeof scale);
  }
}
bool finite_q8_0(const StoredBlocks& b) {
  return each_block(b, [](const uint8_t* block, uint8_t, int64_t) {
    int16_t scale;
    std::memcpy(&scale, block, sizeof scale);
    return (scale & kF16Exponent) != kF16Exponent;
  });
}

void decode_mxfp4(const StoredBlocks& from, float* out) {
  each_block(from, [&](const uint8_t* codes, uint8_t scale, int64_t b) {
    return mx::dequantize_mxfp4(codes, scale, out + b * mx::kBlock), true;
  });
}
void encode_mxfp4(const float* x, int64_t blocks, std::byte* data, std::byte* scales) {
  for (int64_t b = 0; b < blocks; ++b)
    scales[b] = std::byte{mx::quantize_mxfp4(x + b * mx::kBlock, bytes_at(data + b * mx::kPackedBlock))};
}
bool finite_mxfp4(const StoredBlocks& b) {
  return each_block(b, [](const uint8_t*, uint8_t scale, int64_t) { return scale != mx::kScaleNan; });
}

void decode_mxfp4_gguf(const StoredBlocks& from, float* out) {
  each_block(from, [&](const uint8_t* block, uint8_t, int64_t b) {
    const float scale = mx::decode_e8m0(block[0]);
    float* to = out + b * mx::kBlock;
    for (int j = 0; j < mx::kPackedBlock; ++j) {
      to[j] = mx::decode_e2m1(block[1 + j] & 15) * scale;
      to[j + mx::kPackedBlock] = mx::decode_e2m1(block[1 + j] >> 4) * scale;
    }
    return true;
  });
}
// mx::encode_e2m1 of a magnitude and a sign, without a branch: half-way values go to the even code.
int e2m1_code(float x) {
  const float m = std::fabs(x);
  const int code = int{m > 0.25F} + int{m >= 0.75F} + int{m > 1.25F} + int{m >= 1.75F} + int{m > 2.5F} +
                   int{m >= 3.5F} + int{m > 5.0F};
  return code | (std::signbit(x) ? 8 : 0);
}
// mx::quantize_mxfp4 in GGUF's order, several times as fast: a model's experts are converted as it is loaded.
void encode_mxfp4_gguf(const float* x, int64_t blocks, std::byte* data, std::byte* /*scales*/) {
  for (int64_t b = 0; b < blocks; ++b, x += mx::kBlock) {
    uint8_t* out = bytes_at(data + b * kMxfp4GgufBlock);
    const uint8_t scale = mx::block_scale(mx::block_amax(x), 2);
    const int exponent = 127 - int{scale};  // exact in two steps where 2^exponent is none of F32's
    const float half = mx::exp2_int(exponent / 2), rest = mx::exp2_int(exponent - exponent / 2);
    int codes[mx::kBlock];
    for (int i = 0; i < mx::kBlock; ++i) codes[i] = e2m1_code(x[i] * half * rest);
    out[0] = scale;
    for (int j = 0; j < mx::kPackedBlock; ++j)
      out[1 + j] = scale == mx::kScaleNan ? uint8_t{0}
                                          : static_cast<uint8_t>(codes[j] | codes[j + mx::kPackedBlock] << 4);
  }
}
bool finite_mxfp4_gguf(const StoredBlocks& b) {
  return each_block(b, [](const uint8_t* block, uint8_t, int64_t) { return block[0] != mx::kScaleNan; });
}

void decode_mxfp8(const StoredBlocks& from, float* out) {
  each_block(from, [&](const uint8_t* codes, uint8_t scale, int64_t b) {
    return mx::dequantize_mxfp8(codes, scale, out + b * mx::kBlock), true;
  });
}
void encode_mxfp8(const float* x, int64_t blocks, std::byte* data, std::byte* scales) {
  for (int64_t b = 0; b < blocks; ++b)
    scales[b] = std::byte{mx::quantize_mxfp8(x + b * mx::kBlock, bytes_at(data + b * mx::kBlock))};
}
bool finite_mxfp8(const StoredBlocks& b) {
  return each_block(b, [](const uint8_t* codes, uint8_t scale, int64_t) {
    bool finite = scale != mx::kScaleNan;
    for (int i = 0; i < mx::kBlock; ++i) finite = finite && (codes[i] & 0x7F) != 0x7F;
    return finite;
  });
}

constexpr FormatInfo kFormats[] = {
    {.format = Format::kF32,
     .name = "F32",
     .bytes = 4,
     .safetensors = "F32",
     .gguf = 0,
     .gguf_file = 0,
     .decode = decode_plain<float, same>,
     .encode = encode_plain<same>,
     .finite = finite_plain<int32_t, kF32Exponent>},
    {.format = Format::kF16,
     .name = "F16",
     .bytes = 2,
     .safetensors = "F16",
     .gguf = 1,
     .gguf_file = 1,
     .decode = decode_plain<uint16_t, mx::decode_f16>,
     .encode = encode_plain<mx::encode_f16>,
     .finite = finite_plain<int16_t, kF16Exponent>},
    {.format = Format::kBF16,
     .name = "BF16",
     .option = "bf16",
     .bytes = 2,
     .fits_bf16 = true,
     .safetensors = "BF16",
     .gguf = 30,
     .gguf_file = 32,
     .decode = decode_plain<uint16_t, mx::decode_bf16>,
     .encode = encode_plain<mx::encode_bf16>,
     .finite = finite_plain<int16_t, kBF16Exponent>},
    {.format = Format::kQ8_0,
     .name = "Q8_0",
     .option = "q8_0",
     .block = mx::kBlock,
     .bytes = kQ8Block,
     .gguf = 8,
     .gguf_file = 7,
     .decode = decode_q8_0,
     .encode = encode_q8_0,
     .finite = finite_q8_0},
    {.format = Format::kMxfp4,
     .name = "MXFP4",
     .option = "mxfp4",
     .block = mx::kBlock,
     .bytes = mx::kPackedBlock,
     .scale_bytes = 1,
     .mx = true,
     .fits_bf16 = true,
     .gguf_file = 38,
     .decode = decode_mxfp4,
     .encode = encode_mxfp4,
     .finite = finite_mxfp4},
    {.format = Format::kMxfp4Gguf,
     .name = "MXFP4",
     .block = mx::kBlock,
     .bytes = kMxfp4GgufBlock,
     .mx = true,
     .fits_bf16 = true,
     .gguf = 39,
     .gguf_file = 38,
     .decode = decode_mxfp4_gguf,
     .encode = encode_mxfp4_gguf,
     .finite = finite_mxfp4_gguf},
    {.format = Format::kMxfp8,
     .name = "MXFP8",
     .option = "mxfp8",
     .block = mx::kBlock,
     .bytes = mx::kBlock,
     .scale_bytes = 1,
     .mx = true,
     .fits_bf16 = true,
     .safetensors = "F8_E4M3",
     .decode = decode_mxfp8,
     .encode = encode_mxfp8,
     .finite = finite_mxfp8},
};

static_assert(in_order(kFormats), "one row for each format");

}  // namespace

std::span<const FormatInfo> formats() { return kFormats; }
const FormatInfo& info_of(Format format) { return kFormats[static_cast<size_t>(format)]; }

std::string dense_options(std::string_view between) {
  std::string names;
  for (const FormatInfo& f : kFormats) {
    if (!f.option.empty()) names.append(names.empty() ? "" : between).append(f.option);
  }
  return names;
}

std::optional<Format> stored_format(std::string_view type) {
  for (const FormatInfo& f : kFormats) {
    if ((!type.empty() && f.safetensors == type) || (f.gguf >= 0 && f.name == type)) return f.format;
  }
  return std::nullopt;
}

int64_t row_bytes(Format format, int64_t cols) {
  const FormatInfo& f = info_of(format);
  return cols / f.block * f.bytes;
}
int64_t row_scale_bytes(Format format, int64_t cols) {
  const FormatInfo& f = info_of(format);
  return cols / f.block * f.scale_bytes;
}

void round_to(Format format, std::span<float> x) {
  const FormatInfo& f = info_of(format);
  for (size_t i = 0; format != Format::kF32 && i < x.size(); i += mx::kBlock) {
    const std::span<float> part = x.subspan(i, std::min<size_t>(mx::kBlock, x.size() - i));
    const int64_t blocks = std::ssize(part) / f.block;
    std::byte data[mx::kBlock * sizeof(float)], scales[mx::kBlock] = {};
    f.encode(part.data(), blocks, data, scales);
    f.decode({data, f.bytes, scales, blocks}, part.data());
  }
}

void to_gguf_order(const uint8_t* canonical, uint8_t* out) {
  const auto code = [&](int i) { return canonical[i / 2] >> (i % 2 * 4) & 15; };
  for (int j = 0; j < mx::kPackedBlock; ++j)
    out[j] = static_cast<uint8_t>(code(j) | code(j + mx::kPackedBlock) << 4);
}

void to_canonical_order(const uint8_t* gguf, uint8_t* out) {
  constexpr int kHalf = mx::kPackedBlock / 2;
  for (int j = 0; j < kHalf; ++j) {
    out[j] = static_cast<uint8_t>((gguf[2 * j] & 15) | ((gguf[2 * j + 1] & 15) << 4));
    out[j + kHalf] = static_cast<uint8_t>((gguf[2 * j] >> 4) | (gguf[2 * j + 1] & 0xF0));
  }
}

}  // namespace moesaic
