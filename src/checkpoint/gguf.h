// GGUF v3: metadata and tensors of a llama.cpp model file.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "checkpoint/tensor_map.h"

namespace moesaic {

using GgufValue = std::variant<int64_t, double, bool, std::string, std::vector<std::string>,
                               std::vector<int64_t>, std::vector<double>>;

struct GgufFile {
  std::map<std::string, GgufValue> metadata;
  TensorMap tensors;  // shapes outermost first (GGUF stores them innermost first)

  // The value of a key; null where it is not there, or is of another type.
  template <typename T>
  const T* get(const std::string& key) const {
    const auto it = metadata.find(key);
    return it == metadata.end() ? nullptr : std::get_if<T>(&it->second);
  }
  // True for a file of Ollama's own converter, which spells the architecture without the hyphen.
  bool written_by_ollama() const;
};

// Tensor types read: F32, F16, BF16, Q8_0, MXFP4, I32, I64 and those of ggml_blocks.h and expert_formats.h;
// another one is an error that names tensor and type.
Result<GgufFile> read_gguf(std::shared_ptr<const MappedFile> file);

// general.architecture, which every writer puts among the first entries of the metadata: read without the
// rest. Empty where it is not there, or the file is none.
std::string gguf_architecture(const MappedFile& file);

}  // namespace moesaic
