// Tiles that this program has no machine code for: NVRTC compiles them from their sources, which the program
// carries, and they are kept on disk. Native code for a device of SM12x's kind cannot be had otherwise, since
// it is an architecture's own and no PTX for others carries it.
#pragma once

#include <string>
#include <vector>

#include "backend/cuda/kernels/sm120/gemm.h"
#include "backend/cuda/runtime/nvrtc.h"
#include "base/file_cache.h"

namespace moesaic::cuda::sm120a {

// The kernel of a tile as C++ spells it. units: of a thread block for few tokens; epilogue: SwiGluMx,
// Store or Qkv.
std::string tile_name(Element weights, Tile tile, int units, const std::string& epilogue);
// All that gemm.h launches.
std::vector<std::string> tile_names();

struct TileCode {
  KernelCode kernel;
  bool cached = false;  // it was on disk
};
// By source, compiler, architecture and name. What is not cached is compiled, and cached if that is possible.
Result<TileCode> tile_code(const std::string& name, const std::string& architecture, const FileCache& cache);

}  // namespace moesaic::cuda::sm120a
