// How messages name a tensor of ModelWeights.
#pragma once

#include <fmt/format.h>

#include <string>

namespace moesaic {

inline constexpr int kNoLayer = -1;  // embedding, final norm and head

inline std::string tensor_name(int layer, const char* name) {
  return layer == kNoLayer ? fmt::format("tensor '{}'", name)
                           : fmt::format("layer {}: tensor '{}'", layer, name);
}

}  // namespace moesaic
