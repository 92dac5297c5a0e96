#include "backend/cuda/kernels/sm120/load_tile.h"

#include <array>
#include <atomic>

#include "backend/cuda/kernels/sm120/gemm.h"
#include "backend/cuda/kernels/sm120/tile_code.h"
#include "base/error.h"
#include "base/log.h"

namespace moesaic::cuda::sm120 {
namespace {

Result<cudaDeviceProp> properties() {
  ASSIGN_OR_RETURN(const int device, current_device());
  cudaDeviceProp p{};
  RETURN_IF_ERROR(check(cudaGetDeviceProperties(&p, device), "device"));
  return p;
}
std::string architecture_of(const cudaDeviceProp& p) {
  return fmt::format("sm_{}{}{}", p.major, p.minor, p.major >= 9 ? "a" : "");
}

bool own_tiles_are_native() {
  static PerDevice<bool> native;
  const Result<bool> known = native.get([]() -> Result<bool> {
    int value = 0;
    RETURN_IF_ERROR(check(read_native_mma(value), "the tiles' code"));
    return value != 0;
  });
  if (!known.ok()) cudaGetLastError();
  return known.ok() && known.value();
}

std::array<std::atomic<bool>, PerDevice<int>::kMostDevices> emulated;

void note_emulation(const cudaDeviceProp& p, const Status& reason) {
  const Result<int> device = current_device();
  if (!device.ok() || device.value() >= std::ssize(emulated)) return;
  if (!emulated[static_cast<size_t>(device.value())].exchange(true))
    debug(fmt::format("cuda:{}: no machine code with block-scaled MMA for {}, it is emulated slowly: {}",
                      device.value(), architecture_of(p), reason.message()));
}

// True if there is code for `kernel`, and it is not the emulation on a device that has the instruction.
bool has_native(const void* kernel, const cudaDeviceProp& p, bool& runs) {
  cudaFuncAttributes a{};
  runs = cudaFuncGetAttributes(&a, kernel) == cudaSuccess;
  if (!runs) cudaGetLastError();
  return runs && (p.major != kBlockScaledMajor || own_tiles_are_native());
}

}  // namespace

Result<const void*> compiled_tile(const std::string& name, const std::string& architecture) {
  ASSIGN_OR_RETURN(const TileCode code, tile_code(name, architecture, kernel_cache()));
  debug(fmt::format("{}: {} for {}", name, code.cached ? "found on disk" : "compiled", architecture));
  cudaLibrary_t library = nullptr;
  cudaKernel_t kernel = nullptr;
  RETURN_IF_ERROR(
      check(cudaLibraryLoadData(&library, code.kernel.cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
            name));
  RETURN_IF_ERROR(check(cudaLibraryGetKernel(&kernel, library, code.kernel.symbol.c_str()), name));
  return static_cast<const void*>(kernel);
}

FileCache kernel_cache() {
  const std::string folder = cache_folder();
  return FileCache(folder.empty() ? folder : folder + "/kernels");
}

Result<const void*> load_tile(const void* kernel, const std::string& name, size_t shared) {
  ASSIGN_OR_RETURN(const cudaDeviceProp p, properties());
  bool runs = false;
  const void* function = kernel;
  if (!has_native(kernel, p, runs)) {
    const Result<const void*> compiled = compiled_tile(name, architecture_of(p));
    if (!compiled.ok() && !runs) return compiled.status();
    if (compiled.ok()) function = compiled.value();
    if (!compiled.ok() && p.major == kBlockScaledMajor) note_emulation(p, compiled.status());
  }
  RETURN_IF_ERROR(set_attributes(function, {.max_shared = shared, .prefer_shared = true}));
  return function;
}

bool emulates() {
  const Result<cudaDeviceProp> p = properties();
  if (!p.ok() || p.value().major != kBlockScaledMajor) return true;
  const Result<int> device = current_device();
  return device.ok() && device.value() < std::ssize(emulated) &&
         emulated[static_cast<size_t>(device.value())];
}

Result<DeviceCode> device_code() {
  ASSIGN_OR_RETURN(const cudaDeviceProp p, properties());
  bool runs = false;
  return DeviceCode{.architecture = architecture_of(p), .lacking = !has_native(any_tile(), p, runs)};
}

Status load_expert_tiles() {
  for (const Tile tile : kTiles) {
    RETURN_IF_ERROR(gemm({}, {}, tile, SwiGluMx{}, nullptr));
    RETURN_IF_ERROR(gemm({}, {}, tile, Store{}, nullptr));
  }
  return {};
}

Status load_dense_tiles() {
  for (const Tile tile : kTiles) {
    for (const Element element : {Element::kE2M1, Element::kE4M3}) {
      RETURN_IF_ERROR(gemm({.element = element}, {}, tile, Store{}, nullptr));
      RETURN_IF_ERROR(gemm({.element = element}, {}, tile, Qkv{}, nullptr));
    }
  }
  return {};
}

}  // namespace moesaic::cuda::sm120
