// Which machine code a tile's launch uses: the program's own, or what NVRTC makes for a device that the
// program has none for.
#pragma once

#include <string>

#include "backend/cuda/layout/quad_layout.h"
#include "backend/cuda/runtime/device.h"
#include "base/file_cache.h"

namespace moesaic::cuda::sm120 {

// Major compute capability of the chips that have the instructions of kernels/ptx/block_scaled_mma.cuh.
inline constexpr int kBlockScaledMajor = 12;

// The user's, where tiles are kept.
FileCache kernel_cache();

// The code for the current device, and if the program lacks its native code for tiles.
struct DeviceCode {
  std::string architecture;  // "sm_120a"
  bool lacking = false;
};
Result<DeviceCode> device_code();

// 1 in `native` if the program's tiles for the current device have block-scaled MMA, 0 if they emulate it:
// the compiled code's own word (native.cu). Not while a stream is captured.
cudaError_t read_native_mma(int& native);

// True if the current device lacks block-scaled MMA, or a tile that was loaded for it emulates the
// instruction.
bool emulates();

// The tile `name` of tile_code.h on the current device; stays loaded.
Result<const void*> compiled_tile(const std::string& name, const std::string& architecture);

// Returns the code to launch for `kernel`, which may take `shared` bytes of dynamic shared memory: the
// program's own code; or the tile `name` compiled by NVRTC (tile_code.h); or, without NVRTC, the emulation
// that the driver compiles from PTX.
Result<const void*> load_tile(const void* kernel, const std::string& name, size_t shared);

// The tiles of gemm.h, before there are requests: those of experts, and those of dense layers.
Status load_expert_tiles();
Status load_dense_tiles();

}  // namespace moesaic::cuda::sm120
