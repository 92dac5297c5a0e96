#include "checkpoint/expert_formats.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "checkpoint/ggml_blocks.h"
#include "core/q8_0.h"
#include "mx/block.h"

namespace moesaic {
namespace {

constexpr int64_t kQ8Bytes = 34, kMxfp4Bytes = 17, kMostBlock = 256;

constexpr ExpertType kTypes[] = {{4, kPairedMxfp4, 32, kMxfp4Bytes}, {40, "NVFP4", 64, 36}};

using Block = const uint8_t*;

void decode_q8_0(Block b, float* out) {
  uint16_t scale;
  std::memcpy(&scale, b, sizeof scale);
  for (int i = 0; i < mx::kBlock; ++i)
    out[i] = mx::decode_f16(scale) * static_cast<float>(static_cast<int8_t>(b[2 + i]));
}
// A scale, then element j in the low and j + 16 in the high nibble of byte j.
void decode_mxfp4(Block b, float* out) {
  const float scale = mx::decode_e8m0(b[0]);
  for (int j = 0; j < mx::kPackedBlock; ++j) {
    out[j] = scale * mx::decode_e2m1(b[1 + j] & 15);
    out[j + mx::kPackedBlock] = scale * mx::decode_e2m1(b[1 + j] >> 4);
  }
}
void decode_paired(Block b, float* out) { mx::dequantize_mxfp4(b + 1, b[0], out); }
// Four scales in E4M3 (0x7F is zero, as ggml has it), then for each 8 bytes of codes: element j of its 16 in
// the low, j + 8 in the high nibble.
void decode_nvfp4(Block b, float* out) {
  constexpr int kSub = 16, kZero = 0x7F;
  for (int s = 0; s < 4; ++s) {
    const int code = b[s] & 0x7F;
    const float scale = code == kZero ? 0 : mx::decode_e4m3(static_cast<uint8_t>(code));
    for (int j = 0; j < kSub / 2; ++j) {
      const uint8_t pair = b[4 + s * kSub / 2 + j];
      out[s * kSub + j] = scale * mx::decode_e2m1(pair & 15);
      out[s * kSub + j + kSub / 2] = scale * mx::decode_e2m1(pair >> 4);
    }
  }
}

void encode_q8_0(const float* x, uint8_t* out) {
  const uint16_t scale = quantize_q8_0(x, reinterpret_cast<int8_t*>(out + 2));
  std::memcpy(out, &scale, sizeof scale);
}
// mx::encode_e2m1 of a magnitude and a sign, without a branch: half-way values go to the even code.
int e2m1_code(float x) {
  const float m = std::fabs(x);
  const int code = int{m > 0.25F} + int{m >= 0.75F} + int{m > 1.25F} + int{m >= 1.75F} + int{m > 2.5F} +
                   int{m >= 3.5F} + int{m > 5.0F};
  return code | (std::signbit(x) ? 8 : 0);
}
// mx::quantize_mxfp4 in ggml's order, several times as fast.
void encode_mxfp4(const float* x, uint8_t* out) {
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

// Paired nibbles in ggml's order; the scale as it is.
void reorder(Block b, uint8_t* out) {
  const auto code = [&](int i) { return b[1 + i / 2] >> (i % 2 * 4) & 15; };
  out[0] = b[0];
  for (int j = 0; j < mx::kPackedBlock; ++j)
    out[1 + j] = static_cast<uint8_t>(code(j) | code(j + mx::kPackedBlock) << 4);
}

// The way to read a dtype.
struct Reader {
  int64_t block = 0, bytes = 0;
  void (*decode)(Block, float*) = nullptr;
  const GgmlBlocks* ggml = nullptr;  // read through Q8_0 instead

  void run(Block b, float* out) const {
    if (ggml == nullptr) return decode(b, out);
    uint8_t q8[kMostBlock / mx::kBlock * kQ8Bytes];
    ggml->to_q8_0(b, q8);
    for (int64_t i = 0; i < block / mx::kBlock; ++i) decode_q8_0(q8 + i * kQ8Bytes, out + i * mx::kBlock);
  }
};
Reader reader_of(const std::string& dtype) {
  if (dtype == "Q8_0") return {mx::kBlock, kQ8Bytes, decode_q8_0};
  if (dtype == "MXFP4") return {mx::kBlock, kMxfp4Bytes, decode_mxfp4};
  if (dtype == kPairedMxfp4) return {mx::kBlock, kMxfp4Bytes, decode_paired};
  if (dtype == "NVFP4") return {64, 36, decode_nvfp4};
  const GgmlBlocks* const ggml = find_ggml_blocks(dtype);
  MOESAIC_CHECK(ggml != nullptr);
  return {ggml->block, ggml->bytes, nullptr, ggml};
}

int64_t target_bytes(Format to) { return to == Format::kQ8_0 ? kQ8Bytes : kMxfp4Bytes; }

// One stored block to as many as it makes.
void convert(const Reader& from, bool reorders, Format to, Block b, uint8_t* out) {
  if (reorders) return reorder(b, out);
  float values[kMostBlock];
  from.run(b, values);
  for (int64_t i = 0; i < from.block / mx::kBlock; ++i) {
    uint8_t* const target = out + i * target_bytes(to);
    to == Format::kQ8_0 ? encode_q8_0(values + i * mx::kBlock, target)
                        : encode_mxfp4(values + i * mx::kBlock, target);
  }
}

bool reorders(const std::string& dtype, Format to) {
  return dtype == kPairedMxfp4 && to == Format::kMxfp4Gguf;
}

}  // namespace

std::span<const ExpertType> expert_types() { return kTypes; }

std::optional<Format> expert_format(const std::string& dtype) {
  constexpr double kMostForMxfp4 = 5;  // bits
  if (dtype == "F32") return Format::kF32;
  if (dtype == "F16") return Format::kF16;
  if (dtype == "BF16") return Format::kBF16;
  if (dtype == "Q8_0") return Format::kQ8_0;
  if (dtype == "MXFP4" || dtype == kPairedMxfp4 || dtype == "NVFP4") return Format::kMxfp4Gguf;
  const GgmlBlocks* const blocks = find_ggml_blocks(dtype);
  if (blocks == nullptr) return std::nullopt;
  const double bits = 8.0 * static_cast<double>(blocks->bytes) / static_cast<double>(blocks->block);
  return bits <= kMostForMxfp4 ? Format::kMxfp4Gguf : Format::kQ8_0;
}

std::optional<Format> common_format(Format a, Format b) {
  if (a == b) return a;
  return is_plain(a) || is_plain(b) ? std::nullopt : std::optional(Format::kQ8_0);
}

// Twice an E2M1 value is an integer up to 12: Q8_0 holds it, if the scale is one of F16.
bool converts_exactly(const std::string& dtype, Format to) {
  if (dtype == kPairedMxfp4 && to == Format::kMxfp4Gguf) return true;
  if (to != Format::kQ8_0) return false;
  const GgmlBlocks* const blocks = find_ggml_blocks(dtype);
  return blocks != nullptr && blocks->exact;
}

Result<Buffer> convert_blocks(const RawTensor& tensor, Format to, ThreadPool& pool) {
  constexpr int64_t kChunk = 2048;  // blocks
  const Reader from = reader_of(tensor.dtype);
  const int64_t blocks = std::ssize(tensor.data) / from.bytes,
                step = from.block / mx::kBlock * target_bytes(to);
  ASSIGN_OR_RETURN(Buffer buffer, Buffer::allocate(static_cast<size_t>(blocks * step)));
  const auto* const source = reinterpret_cast<const uint8_t*>(tensor.data.data());
  const bool moves = reorders(tensor.dtype, to);
  pool.for_each((blocks + kChunk - 1) / kChunk, [&](int64_t chunk, int) {
    for (int64_t b = chunk * kChunk; b < std::min(blocks, (chunk + 1) * kChunk); ++b)
      convert(from, moves, to, source + b * from.bytes, buffer.as<uint8_t>() + b * step);
  });
  return buffer;
}

double conversion_error(const RawTensor& tensor, Format to) {
  constexpr int64_t kSample = 1024;  // blocks
  if (converts_exactly(tensor.dtype, to)) return 0;
  const Reader from = reader_of(tensor.dtype);
  const int64_t blocks = std::ssize(tensor.data) / from.bytes, step = std::max<int64_t>(1, blocks / kSample);
  const auto* const source = reinterpret_cast<const uint8_t*>(tensor.data.data());
  double difference = 0, square = 0;
  for (int64_t b = 0; b < blocks; b += step) {
    float before[kMostBlock], after[mx::kBlock];
    uint8_t converted[kMostBlock / mx::kBlock * kQ8Bytes];
    from.run(source + b * from.bytes, before);
    convert(from, false, to, source + b * from.bytes, converted);
    for (int64_t i = 0; i < from.block; ++i) {
      if (i % mx::kBlock == 0)
        (to == Format::kQ8_0 ? decode_q8_0 : decode_mxfp4)(converted + i / mx::kBlock * target_bytes(to),
                                                           after);
      const double d = double{after[i % mx::kBlock]} - before[i];
      difference += d * d, square += double{before[i]} * before[i];
    }
  }
  return square > 0 ? std::sqrt(difference / square) : 0;
}

}  // namespace moesaic
