// For tests: where ggml's types have their scale.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>

namespace moesaic {

// Puts a scale in F16 into a block.
inline void put_scale(const std::string& type, uint16_t scale, std::string& block) {
  const std::map<std::string, size_t> kPlaces = {
      {"Q6_K", 208}, {"Q2_K", 80}, {"Q3_K", 108}, {"TQ1_0", 52}, {"TQ2_0", 64}};
  if (type != "IQ1_M") {
    std::memcpy(block.data() + (kPlaces.contains(type) ? kPlaces.at(type) : 0), &scale, 2);
    return;
  }
  for (size_t i = 0; i < 4; ++i)  // four bits above each three scales
    block[49 + 2 * i] = static_cast<char>((block[49 + 2 * i] & 15) | (scale >> (4 * i) & 15) << 4);
}

}  // namespace moesaic
