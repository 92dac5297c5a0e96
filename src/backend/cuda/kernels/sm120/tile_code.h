// Tiles that this program has no machine code for: NVRTC compiles them from their sources, which the
// program carries, and they are kept on disk. There is no other way to native code for a new SM12x device:
// PTX for other architectures cannot contain the instruction.
#pragma once

#include <string>
#include <vector>

#include "backend/cuda/kernels/sm120/gemm.h"
#include "backend/cuda/runtime/nvrtc.h"
#include "base/file_cache.h"

namespace moesaic::cuda::sm120 {

// The kernel of a tile as C++ spells it. weight_tiles: of a small-M CTA; epilogue: SwiGluMx,
// Store or Qkv.
std::string tile_name(Element weights, Tile tile, int weight_tiles, const std::string& epilogue);
// All that gemm.h launches.
std::vector<std::string> tile_names();

struct TileCode {
  KernelCode kernel;
  bool cached = false;  // it was on disk
};
// By source, compiler, architecture and name. What is not cached is compiled, and cached if that is possible.
Result<TileCode> tile_code(const std::string& name, const std::string& architecture, const FileCache& cache);

}  // namespace moesaic::cuda::sm120
