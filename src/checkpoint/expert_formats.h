// Experts in formats that no kernel takes: what each becomes, layer by layer, as a model is loaded.
//
// With 4 to 5 bits a weight: MXFP4, which takes no more memory than the file. With 5.5 bits and more: Q8_0.
// Ollama's first files have MXFP4 under GGUF type 4, with element 2j of a block in the low nibble of byte j
// and 2j + 1 in the high one; ggml's type 39 has j and j + 16. That one is put in order, bit for bit.
#pragma once

#include <optional>
#include <string>

#include "base/buffer.h"
#include "base/thread_pool.h"
#include "checkpoint/tensor_map.h"
#include "core/weights.h"

namespace moesaic {

// RawTensor::dtype of Ollama's.
inline constexpr const char* kPairedMxfp4 = "MXFP4 (type 4)";

// Types of GGUF that only experts have: Ollama's MXFP4 and NVFP4. Elements and bytes of a block.
struct ExpertType {
  uint32_t id;
  const char* name;
  int64_t block, bytes;
};
std::span<const ExpertType> expert_types();

// The format in which experts of a dtype are held; nothing: experts cannot have it.
std::optional<Format> expert_format(const std::string& dtype);
// The format of two tensors that are multiplied together, as gate and up are; nothing: they do not go
// together.
std::optional<Format> common_format(Format a, Format b);

// True if every value of `dtype` is one of `to`.
bool converts_exactly(const std::string& dtype, Format to);
// The tensor's blocks in kMxfp4Gguf or kQ8_0. A block with a scale that is not finite keeps one.
Result<Buffer> convert_blocks(const RawTensor& tensor, Format to, ThreadPool& pool);
// rms(converted - stored) / rms(stored) of some of the tensor's blocks.
double conversion_error(const RawTensor& tensor, Format to);

}  // namespace moesaic
