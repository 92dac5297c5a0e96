#include "checkpoint/named_tensors.h"

#include <memory>
#include <utility>

#include "base/error.h"
#include "checkpoint/assemble.h"
#include "checkpoint/config_reader.h"

namespace moesaic {
namespace {

int64_t element_bytes(const std::string& dtype) {
  if (dtype == "F32") return 4;
  if (dtype == "BF16" || dtype == "F16") return 2;
  return dtype == "U8" ? 1 : 0;
}

Result<RawTensor> raw_of(const NamedTensor& t) {
  const auto count = element_count(t.shape);
  const int64_t bytes = element_bytes(t.dtype);
  if (!count || bytes == 0 || t.data == nullptr)
    return invalid("weights: tensor '{}' is empty, or its type '{}' is not BF16, F16, F32 or U8",
                   t.name.substr(0, 120), t.dtype.substr(0, 20));
  return RawTensor{.dtype = t.dtype,
                   .shape = t.shape,
                   .data = {static_cast<const std::byte*>(t.data), static_cast<size_t>(*count * bytes)},
                   .in_memory = true};
}

}  // namespace

Result<NamedModel> model_of_tensors(std::string_view config, const std::vector<NamedTensor>& tensors) {
  ASSIGN_OR_RETURN(const Json json, parse_json(config, "config"));
  NamedModel model;
  ASSIGN_OR_RETURN(model.config, config_from_hf(json, "config"));
  auto map = std::make_shared<TensorMap>();
  for (const NamedTensor& t : tensors) {
    ASSIGN_OR_RETURN(RawTensor raw, raw_of(t));
    if (!map->tensors.emplace(t.name, std::move(raw)).second)
      return invalid("weights: tensor '{}' is given twice", t.name.substr(0, 120));
  }
  ASSIGN_OR_RETURN(model.weights, assemble_hf(std::move(map), model.config));
  model.weights.release = model.weights.evict = model.weights.prefetch = {};
  return model;
}

}  // namespace moesaic
