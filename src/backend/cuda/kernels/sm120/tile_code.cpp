#include "backend/cuda/kernels/sm120/tile_code.h"

#include "base/error.h"

namespace moesaic::cuda::sm120 {
namespace {

// Headers that NVRTC lacks of the host's, and for which it does not need the toolkit's.
constexpr SourceFile kFiles[] = {
    {"cstdint",
     "#pragma once\n"
     "using int8_t = signed char; using int16_t = short; using int32_t = int; using int64_t = long long;\n"
     "using uint8_t = unsigned char; using uint16_t = unsigned short; using uint32_t = unsigned;\n"
     "using uint64_t = unsigned long long; using size_t = decltype(sizeof(0));\n"},
    {"cuda_runtime.h", "#pragma once\n"},
#include "backend/cuda/kernels/sm120/tile_sources.inc"
};
constexpr const char* kSpace = "moesaic::cuda::sm120::";

std::string element_name(Element e) {
  return fmt::format("{}Element::{}", kSpace, e == Element::kE4M3 ? "kE4M3" : "kE2M1");
}
// Store and Qkv are the whole backend's.
std::string epilogue_name(const std::string& name) {
  return (name == "Store" || name == "Qkv" ? "moesaic::cuda::" : kSpace) + name;
}

uint64_t source_hash() {
  std::string all;
  for (const SourceFile& f : kFiles) all.append(f.path).append("\n").append(f.text);
  return fnv1a(all);
}

}  // namespace

std::string tile_name(Element weights, Tile tile, int weight_tiles, const std::string& epilogue) {
  const TileShape shape = shape_of(weights, tile);
  const bool small_m = shape.groups > 0;
  const std::string sizes = small_m
                                ? fmt::format("{}, {}", shape.groups, weight_tiles)
                                : fmt::format("{}, {}, {}", shape.tokens, shape.weight_tiles, shape.stages);
  return fmt::format("{}block_scaled_{}_m_kernel<{}, {}, {}>", kSpace, small_m ? "small" : "large",
                     element_name(weights), sizes, epilogue_name(epilogue));
}

std::vector<std::string> tile_names() {
  using enum Element;
  std::vector<std::string> names;
  for (const Tile tile : kTiles) {
    names.push_back(tile_name(kE2M1, tile, kSwiGluWeightTiles, "SwiGluMx"));
    for (const Element weights : {kE2M1, kE4M3}) {
      for (const char* epilogue : {"Store", "Qkv"})
        names.push_back(tile_name(weights, tile, kRowWeightTiles, epilogue));
    }
  }
  return names;
}

Result<TileCode> tile_code(const std::string& name, const std::string& architecture, const FileCache& cache) {
  static const uint64_t kHash = source_hash();
  ASSIGN_OR_RETURN(const std::string version, nvrtc_version());
  const std::string key = fmt::format("tile {}\narchitecture {}\nsources {:016x}\nnvrtc {}\n", name,
                                      architecture, kHash, version);
  if (const auto blob = cache.find(key)) {
    const size_t line = blob->find('\n');
    if (line != std::string::npos)
      return TileCode{.kernel = {.cubin = blob->substr(line + 1), .symbol = blob->substr(0, line)},
                      .cached = true};
  }
  const bool large_m = name.find("_large_m_kernel") != std::string::npos;
  ASSIGN_OR_RETURN(KernelCode kernel,
                   compile({.files = kFiles,
                            .root = large_m ? "backend/cuda/kernels/sm120/gemm_large_m.cuh"
                                            : "backend/cuda/kernels/sm120/gemm_small_m.cuh",
                            .name = name,
                            .architecture = architecture}));
  // A full disk or a folder that may not be written: it is compiled again next time.
  static_cast<void>(cache.put(key, kernel.symbol + "\n" + kernel.cubin).ok());
  return TileCode{.kernel = std::move(kernel)};
}

}  // namespace moesaic::cuda::sm120
