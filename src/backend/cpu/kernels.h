// The kernel table: everything of the CPU backend that depends on the instruction set. kernels_impl.h is
// compiled once per instruction set; the primitives that differ stand in simd.h.
//
// Weights are packed in panels of 16 rows (pack.h), so that a 16-lane register holds one value of 16 rows and
// no kernel ever adds across lanes, and panels in pairs, group by group, so that a thread reads one stream of
// memory (70 GB/s on two Zen 5 cores where two streams of panels gave 63). Each output is one chain of
// operations in a fixed order over the contraction dimension: it does not depend on the number of tokens,
// tiles or threads.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/mxfp4_panels.h"
#include "core/format.h"
#include "core/kv_page.h"

namespace moesaic::cpu {

// Formats of packed weights: the groups of a panel with K columns. In a pair each group of the first
// panel is followed by the same group of the second; scales likewise.
//   kMxfp4  as backend/mxfp4_panels.h has it
//   kQ8_0   K/4 groups of 64 bytes, 8 a block: byte 4 * row + i (i < 4) of group j holds the block's element
//           4 * j + i plus weight_offset; scales K/32 groups of 16 F16
//   kBF16   K/2 groups of 64 bytes: element 2 * g + i of a row at 4 * row + 2 * i
//   kF16    K groups of 32 bytes
//   kF32    K groups of 64 bytes
//   kMxfp8  K groups of 16 bytes (E4M3); scales K/32 groups of 16 bytes (E8M0)

// Groups of a block of 32 columns, 64 bytes each.
inline constexpr int kInt8Groups = 8;

// Formats of the activations that meet them.
enum class Act : uint8_t {
  kInt8,        // int8 with one F32 scale per 32 (amax / 127), for kMxfp4 and kQ8_0
  kBF16,        // for kBF16
  kBlockFloat,  // for kMxfp4 as BF16 numbers; below
  kF32,         // for the rest, and for kMxfp4 where activations were rounded to an MX format
};

// Block floating point: whole multiples, at most 254 in magnitude, of one power of two for a block of 32, its
// unit: the smallest that allows it, finer than kInt8's scale. Products with a block of MXFP4 are multiples
// of one power of two as well, and a float holds all their sums exactly (32 x 254 x 12 halves at most): so
// the order of a block's additions does not matter. A row has its elements twice: as BF16 numbers in
// nibble_element()'s order, and at `parts` as two rows of int8, whose sum is the multiples. A block with 2^59
// or more is not a number; with less than 2^-58 it loses bits.
inline constexpr int kBlockFloatParts = 2;
inline constexpr int kMostBlockExponent = 58, kLeastBlockExponent = -58;

// The element of a block that stands at place `at` where 16-bit words of kMxfp4 are shifted right by 0, 4, 8
// and 12 bits, each to give two elements.
constexpr int nibble_element(int at) {
  const int group = at / 8, nibble = at / 2 % 4, word = at % 2;
  return nibble % 2 * 16 + group * 4 + word * 2 + nibble / 2;
}

// Activation rows. Row r: int8, BF16 or F32 at data + r * stride; its blocks' scales (int8) or units (block
// floating point) at scale + r * cols / 32.
struct ActView {
  Act format = Act::kF32;
  const void* data = nullptr;
  const void* parts = nullptr;  // row 0 of block floating point's int8 rows
  int64_t stride = 0;           // bytes
  const float* scale = nullptr;
  // [rows, cols / 32]: -weight_offset * (sum of the block's int8); block floating point: half of it, as both
  // parts start from it.
  const int32_t* bias = nullptr;
  int64_t cols = 0;  // a multiple of 32
};

// How weights are asked for ahead of their use, and into which caches: x86 prefetcht0 (all), prefetcht1 (L2
// and beyond) and prefetchnta (L1, as data that is read once); Arm likewise. Which one is right differs
// between CPUs by a factor of three (docs/lab), so it is measured: tuning.h.
enum class Prefetch : uint8_t { kNone, kT0, kT1, kNta };
// Always inlined: a copy compiled for one instruction set must not serve another.
template <Prefetch kHint>
[[gnu::always_inline]] inline void prefetch_line(const void* p) {
  if constexpr (kHint == Prefetch::kT0) __builtin_prefetch(p, 0, 3);
  if constexpr (kHint == Prefetch::kT1) __builtin_prefetch(p, 0, 2);
  if constexpr (kHint == Prefetch::kNta) __builtin_prefetch(p, 0, 0);
}

// Settings that kernels get at run time. Nothing here changes a result.
struct GemmTuning {
  Prefetch prefetch = Prefetch::kT0;
  int32_t distance = 4096;  // bytes of weights
  // From so many tokens on, MXFP4 and int8 weights are expanded once for all tokens (to bytes, or to AMX
  // tiles) rather than again with every few tokens. 0: Kernels::expand_tokens.
  int32_t expand_tokens = 0;
  bool operator==(const GemmTuning&) const = default;
};

// A pair of panels times some tokens: token t is row t of the activations.
struct PairTask {
  Format format = Format::kF32;
  const uint8_t* data = nullptr;
  const uint8_t* scales = nullptr;
  ActView act;
  int tokens = 0;
  uint8_t* scratch = nullptr;  // kMxfp4, kQ8_0: scratch_bytes(cols) for the expanded panels, aligned
  float* out = nullptr;        // [tokens, 32], lane l of panel p at p * 16 + l
  GemmTuning tuning;
};

// Panels as bytes and their scales, whole; or kRingBlocks blocks of them as BF16.
inline constexpr int kRingBlocks = 8;
constexpr int64_t scratch_bytes(int64_t cols) {
  const int64_t blocks = cols / 32, ring = blocks < kRingBlocks ? blocks : kRingBlocks;
  const int64_t as_bytes = kPair * blocks * (512 + 64), as_bf16 = kPair * ring * 1024;
  return as_bytes > as_bf16 ? as_bytes : as_bf16;
}

// Attention of up to 8 query heads that share a KV head, for one token.
struct AttendTask {
  int heads = 0;  // 1 to 8
  int head_dim = 0;
  const int8_t* q = nullptr;         // [heads, head_dim]
  const int32_t* q_bias = nullptr;   // [heads]: -weight_offset * (sum of the head's int8)
  const float* q_scale = nullptr;    // [heads], with the softmax scale folded in
  const float* sinks = nullptr;      // [heads]
  const int32_t* pages = nullptr;    // page table of the sequence
  const uint8_t* k_cache = nullptr;  // base of this KV head in page 0
  const int16_t* v_cache = nullptr;
  const float* k_scale = nullptr;
  const float* v_scale = nullptr;
  int64_t page_stride = 0;        // elements of K and of V from page to page
  int64_t scale_page_stride = 0;  // floats from page to page
  int first = 0, last = 0;        // positions attended: [first, last]
  float* out = nullptr;           // [heads, head_dim]
};

struct Kernels {
  const char* name;
  int weight_offset;  // added to int8 weights when they are packed: 128 where the dot product wants unsigned
                      // bytes
  int expand_tokens;  // GemmTuning's, where nothing was measured
  bool expands_int8;  // it holds for kQ8_0 weights, too
  Act mxfp4_act;      // multiplies kMxfp4: kInt8 or kBlockFloat

  void (*gemm)(const PairTask& task);
  // gemm's products of MXFP4 alone, on registers, so many rounds; returns the operations, two for each
  // multiply-add.
  int64_t (*multiply)(int64_t rounds);

  // n is a multiple of 32.
  void (*quantize_row)(const float* x, int64_t n, int8_t* q, float* scale, int32_t* bias);
  void (*to_bf16)(const float* x, int64_t n, uint16_t* out);
  // parts: [kBlockFloatParts, n]. Null where mxfp4_act is kInt8.
  void (*to_block_float)(const float* x, int64_t n, uint16_t* out, int8_t* parts, float* unit, int32_t* bias);
  // out = x / rms(x) * weight. Returns false if x is not finite or out reaches 2^59.
  bool (*rmsnorm)(const float* x, const float* weight, int64_t n, float eps, float* out);
  // tile: [tokens, 32], 16 gate values then 16 up values a token, biases [16] each; clamped at limit.
  // out: [tokens, out_stride], 16 values a token.
  void (*swiglu_tile)(const float* tile, const float* gate_bias, const float* up_bias, int tokens,
                      float alpha, float limit, float* out, int64_t out_stride);
  // out += sum_k weight[k] * (y[k] + bias[k]), in the order of k.
  void (*combine)(const float* const* y, const float* const* bias, const float* weight, int top_k, int64_t n,
                  float* out);

  // Rotates halves: x[i], x[i + head_dim / 2] of each head by the angle of cosine[i], sine[i].
  void (*rope)(float* x, int heads, int head_dim, const float* cosine, const float* sine);
  // No NaN and no infinity. n is a multiple of 16.
  bool (*finite)(const float* x, int64_t n);
  // Integers of magnitude at most 127 or kVLimit, x = scale * q, to nearest even; return the scale. x is
  // finite, n a multiple of 16; *sum is the sum of the integers.
  float (*quantize_int8)(const float* x, int n, int8_t* q, int32_t* sum);
  float (*quantize_int16)(const float* x, int n, int16_t* q);
  void (*attend)(const AttendTask& task);
};

// Best first; only those that this machine runs.
std::vector<const Kernels*> available_kernels();
// Those that this machine runs with some instructions in software: far slower than any of the above, for
// tests.
std::vector<const Kernels*> emulated_kernels();

inline constexpr int kVLimit = 2047;           // largest v: 32 keys * 2047 * kProbabilityOne fit int32
inline constexpr int kProbabilityOne = 16384;  // softmax weights are fixed-point in units of 2^-14

}  // namespace moesaic::cpu
