// NVRTC, where its library is: opened at run time, so that a program runs without it. No device is needed.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "moesaic/status.h"

namespace moesaic::cuda {

struct SourceFile {
  std::string_view path, text;  // path: as #include names it
};

// The version of the library that compile() uses, "13.0"; an error says where it was looked for.
Result<std::string> nvrtc_version();

// Machine code of one kernel.
struct KernelCode {
  std::string cubin;
  std::string symbol;  // its name in there
};
struct KernelSource {
  std::span<const SourceFile> files;
  std::string_view root;     // the file that is compiled
  std::string name;          // the kernel's, as C++ spells it, template arguments and all
  std::string architecture;  // "sm_120a"
};
// CUDA's own headers are taken from beside the library. An error holds the first line of the compiler's log.
Result<KernelCode> compile(const KernelSource& source);

}  // namespace moesaic::cuda
