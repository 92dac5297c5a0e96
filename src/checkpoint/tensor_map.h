// The tensors of one or more files by name: what every reader produces and what assemble.h turns into
// ModelWeights.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/mapped_file.h"

namespace moesaic {

struct RawTensor {
  std::string dtype;           // "F32", "F16", "BF16", "U8", "Q8_0", "MXFP4", or one of ggml_blocks.h or
                               // expert_formats.h
  std::vector<int64_t> shape;  // outermost first
  std::span<const std::byte> data;
  const MappedFile* file = nullptr;
  bool in_memory = false;  // data is no part of the file (widen.h)
};

struct TensorMap {
  std::map<std::string, RawTensor> tensors;
  std::vector<std::shared_ptr<const MappedFile>> files;
  std::vector<std::shared_ptr<const Buffer>> buffers;  // for tensors in memory

  const RawTensor* find(const std::string& name) const;
  std::vector<TensorInfo> list() const;
  // Adds another file's; a name that stands in both is an error.
  Status append(TensorMap other);
};

// The number of elements, or nothing if a dimension is not positive or the product passes 2^48.
std::optional<int64_t> element_count(std::span<const int64_t> shape);
// The format of a tensor in F32, F16, BF16 or Q8_0; nothing: it has another one.
std::optional<Format> float_format(const RawTensor& tensor);
std::string shape_text(std::span<const int64_t> shape);  // "[2, 3]"

// Adds the tensors of a .safetensors file. Checks header, names, offsets and sizes. A tensor that is there
// already must be the same.
Status read_safetensors(std::shared_ptr<const MappedFile> file, TensorMap& out);
// Reads several files of a folder into one map.
Result<std::shared_ptr<TensorMap>> read_safetensors(const std::filesystem::path& folder,
                                                    const std::set<std::string>& names);

}  // namespace moesaic
