// GGUF's block formats that moesaic has no kernels for, and how each becomes Q8_0.
//
// Layouts are ggml's (its quants as of 2026). Element j of a block of 32 stands in the low nibble of byte j,
// element j + 16 in its high nibble; larger blocks are described in ggml_blocks.cpp and iq_blocks.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace moesaic {

struct GgmlBlocks {
  uint32_t id;  // GGUF's number of the type
  const char* name;
  int64_t block, bytes;  // elements and bytes of a block
  bool exact;  // every value is one of Q8_0; else it is rounded to the nearest one of its block of 32
  // One block to block / 32 blocks of Q8_0, of 34 bytes each. A scale that is not finite stays so.
  void (*to_q8_0)(const uint8_t* block, uint8_t* out);
};
// All types that llama.cpp's quantiser writes, but for F32, F16, BF16, Q8_0 and MXFP4, which are kept, and
// NVFP4, which only experts may have.
std::span<const GgmlBlocks> ggml_blocks();
// Null for other names.
const GgmlBlocks* find_ggml_blocks(std::string_view name);

}  // namespace moesaic
