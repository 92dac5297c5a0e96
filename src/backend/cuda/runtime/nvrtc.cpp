#include "backend/cuda/runtime/nvrtc.h"

#include <dlfcn.h>
#include <fmt/ranges.h>
#include <nvrtc.h>

#include <array>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "base/find_symbol.h"

namespace moesaic::cuda {
namespace {

namespace fs = std::filesystem;

// The functions that are used, from the library.
struct Library {
  decltype(&nvrtcVersion) version = nullptr;
  decltype(&nvrtcGetErrorString) error_string = nullptr;
  decltype(&nvrtcCreateProgram) create = nullptr;
  decltype(&nvrtcDestroyProgram) destroy = nullptr;
  decltype(&nvrtcAddNameExpression) add_name = nullptr;
  decltype(&nvrtcCompileProgram) compile = nullptr;
  decltype(&nvrtcGetLoweredName) lowered_name = nullptr;
  decltype(&nvrtcGetCUBINSize) cubin_size = nullptr;
  decltype(&nvrtcGetCUBIN) cubin = nullptr;
  decltype(&nvrtcGetProgramLogSize) log_size = nullptr;
  decltype(&nvrtcGetProgramLog) log = nullptr;
  std::string headers;  // CUDA's
};

constexpr std::array<const char*, 3> kLibraries = {"libnvrtc.so.13", "libnvrtc.so",
                                                   "/usr/local/cuda/lib64/libnvrtc.so"};

// Beside the library, as toolkits and Python packages have it, or where toolkits are by default.
std::string headers_beside(void* function) {
  Dl_info info{};
  std::error_code code;
  fs::path folder = "/usr/local/cuda/lib64";
  if (dladdr(function, &info) != 0) folder = fs::canonical(info.dli_fname, code).parent_path();
  for (const fs::path& at :
       {folder / "../include", folder / "../../../include", fs::path("/usr/local/cuda/include")}) {
    if (fs::exists(at / "cuda_fp8.h", code)) return at.string();
  }
  return {};
}

Library open_library() {
  for (const char* name : kLibraries) {
    void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) continue;
    Library l;
    const bool whole = find_symbol(handle, "nvrtcVersion", l.version) &&
                       find_symbol(handle, "nvrtcGetErrorString", l.error_string) &&
                       find_symbol(handle, "nvrtcCreateProgram", l.create) &&
                       find_symbol(handle, "nvrtcDestroyProgram", l.destroy) &&
                       find_symbol(handle, "nvrtcAddNameExpression", l.add_name) &&
                       find_symbol(handle, "nvrtcCompileProgram", l.compile) &&
                       find_symbol(handle, "nvrtcGetLoweredName", l.lowered_name) &&
                       find_symbol(handle, "nvrtcGetCUBINSize", l.cubin_size) &&
                       find_symbol(handle, "nvrtcGetCUBIN", l.cubin) &&
                       find_symbol(handle, "nvrtcGetProgramLogSize", l.log_size) &&
                       find_symbol(handle, "nvrtcGetProgramLog", l.log);
    if (!whole) continue;
    l.headers = headers_beside(reinterpret_cast<void*>(l.version));
    return l;
  }
  return {};
}

// Opened once and kept.
Result<const Library*> library() {
  static const Library kLibrary = open_library();
  if (kLibrary.version == nullptr)
    return error(StatusCode::kNotFound,
                 "no NVRTC: {} are not found; install the CUDA toolkit of this program's version",
                 fmt::to_string(fmt::join(kLibraries, ", ")));
  if (kLibrary.headers.empty())
    return error(StatusCode::kNotFound,
                 "NVRTC is here, but CUDA's headers (cuda_fp8.h) are not; install the toolkit's");
  return &kLibrary;
}

struct Program {
  const Library& library;
  nvrtcProgram handle = nullptr;
  ~Program() {
    if (handle != nullptr) library.destroy(&handle);
  }
};

std::string log_of(const Program& p) {
  size_t bytes = 0;
  if (p.library.log_size(p.handle, &bytes) != NVRTC_SUCCESS || bytes == 0) return {};
  std::string log(bytes, '\0');
  p.library.log(p.handle, log.data());
  return log.substr(0, log.find('\n'));
}

}  // namespace

Result<std::string> nvrtc_version() {
  ASSIGN_OR_RETURN(const Library* const l, library());
  int major = 0, minor = 0;
  l->version(&major, &minor);
  return fmt::format("{}.{}", major, minor);
}

Result<KernelCode> compile(const KernelSource& source) {
  ASSIGN_OR_RETURN(const Library* const l, library());
  std::vector<std::string> texts;
  std::vector<const char*> paths, contents;
  for (const SourceFile& f : source.files) texts.emplace_back(f.text), texts.emplace_back(f.path);
  for (size_t i = 0; i < texts.size(); i += 2)
    contents.push_back(texts[i].c_str()), paths.push_back(texts[i + 1].c_str());
  const std::string root = fmt::format("#include \"{}\"\n", source.root),
                    arch = "-arch=" + source.architecture, headers = "-I" + l->headers;
  const std::array<const char*, 4> options = {arch.c_str(), headers.c_str(), "-std=c++20", "-default-device"};
  Program p{*l};
  nvrtcResult code = l->create(&p.handle, root.c_str(), "tile.cu", static_cast<int>(paths.size()),
                               contents.data(), paths.data());
  if (code == NVRTC_SUCCESS) code = l->add_name(p.handle, source.name.c_str());
  if (code == NVRTC_SUCCESS) code = l->compile(p.handle, static_cast<int>(options.size()), options.data());
  const char* symbol = "";
  if (code == NVRTC_SUCCESS) code = l->lowered_name(p.handle, source.name.c_str(), &symbol);
  size_t bytes = 0;
  if (code == NVRTC_SUCCESS) code = l->cubin_size(p.handle, &bytes);
  KernelCode kernel{.cubin = std::string(bytes, '\0'), .symbol = symbol};
  if (code == NVRTC_SUCCESS) code = l->cubin(p.handle, kernel.cubin.data());
  if (code != NVRTC_SUCCESS)
    return error(StatusCode::kInternal, "NVRTC: {} for {}: {}: {}", source.name, source.architecture,
                 l->error_string(code), log_of(p));
  return kernel;
}

}  // namespace moesaic::cuda
