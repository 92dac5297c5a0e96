#include "checkpoint/expert_formats.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "checkpoint/ggml_blocks.h"
#include "mx/block.h"

namespace moesaic {
namespace {

constexpr int64_t kMostBlock = 256;

constexpr ExpertType kTypes[] = {{4, kPairedMxfp4, mx::kBlock, 1 + mx::kPackedBlock}, {40, "NVFP4", 64, 36}};

using Block = const uint8_t*;

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

// Paired nibbles in ggml's order; the scale as it is.
void reorder(Block b, uint8_t* out) {
  out[0] = b[0];
  to_gguf_order(b + 1, out + 1);
}

// Reader of a dtype: by its own function, by its format, or through Q8_0.
struct Reader {
  int64_t block = 0, bytes = 0;
  void (*decode)(Block, float*) = nullptr;
  const FormatInfo* format = nullptr;
  const GgmlBlocks* ggml = nullptr;

  void run(Block b, float* out) const {
    if (decode != nullptr) return decode(b, out);
    if (format != nullptr) return format->decode({as_stored(b), bytes, nullptr, 1}, out);
    const FormatInfo& q8_0 = info_of(Format::kQ8_0);
    uint8_t q8[kMostBlock + kMostBlock / mx::kBlock * 2];
    ggml->to_q8_0(b, q8);
    q8_0.decode({as_stored(q8), q8_0.bytes, nullptr, block / q8_0.block}, out);
  }
  static const std::byte* as_stored(Block b) { return reinterpret_cast<const std::byte*>(b); }
};
Reader reader_of(const std::string& dtype) {
  if (dtype == kPairedMxfp4) return {kTypes[0].block, kTypes[0].bytes, decode_paired};
  if (dtype == kTypes[1].name) return {kTypes[1].block, kTypes[1].bytes, decode_nvfp4};
  if (const auto format = stored_format(dtype))
    return {info_of(*format).block, info_of(*format).bytes, nullptr, &info_of(*format)};
  const GgmlBlocks* const ggml = find_ggml_blocks(dtype);
  MOESAIC_CHECK(ggml != nullptr);
  return {ggml->block, ggml->bytes, nullptr, nullptr, ggml};
}

// One stored block to as many as it makes.
void convert(const Reader& from, bool reorders, Format to, Block b, uint8_t* out) {
  if (reorders) return reorder(b, out);
  float values[kMostBlock];
  from.run(b, values);
  const FormatInfo& format = info_of(to);
  format.encode(values, from.block / format.block, reinterpret_cast<std::byte*>(out), nullptr);
}

bool reorders(const std::string& dtype, Format to) {
  return dtype == kPairedMxfp4 && to == Format::kMxfp4Gguf;
}

}  // namespace

std::span<const ExpertType> expert_types() { return kTypes; }

std::optional<Format> expert_format(const std::string& dtype) {
  constexpr double kMostForMxfp4 = 5;  // bits
  if (const auto format = stored_format(dtype); format && info_of(*format).gguf >= 0) return format;
  if (dtype == kPairedMxfp4 || dtype == "NVFP4") return Format::kMxfp4Gguf;
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
  const int64_t blocks = std::ssize(tensor.data) / from.bytes, step = row_bytes(to, from.block);
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
    float before[kMostBlock], after[kMostBlock];
    from.run(source + b * from.bytes, before);
    std::copy_n(before, from.block, after);
    round_to(to, {after, static_cast<size_t>(from.block)});
    for (int64_t i = 0; i < from.block; ++i) {
      const double d = double{after[i]} - before[i];
      difference += d * d, square += double{before[i]} * before[i];
    }
  }
  return square > 0 ? std::sqrt(difference / square) : 0;
}

}  // namespace moesaic
