#include "backend/cuda/runtime/launch_log.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/log.h"

namespace moesaic::cuda {
namespace {

thread_local LaunchLog* current = nullptr;

void replace_all(std::string& text, const std::string& part, const std::string& by) {
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part))
    text.replace(at, part.size(), by);
}

std::string size_text(dim3 d) {
  std::string text = fmt::format("{}", d.x);
  if (d.y > 1 || d.z > 1) text += fmt::format("x{}", d.y);
  return d.z > 1 ? text + fmt::format("x{}", d.z) : text;
}

std::string text_of(const void* kernel, dim3 grid, dim3 block) {
  const char* name = nullptr;
  const bool known = cudaFuncGetName(&name, kernel) == cudaSuccess;
  return fmt::format("{} {} x {}", known ? readable_kernel(name) : "a kernel", size_text(grid),
                     block.x * block.y * block.z);
}

}  // namespace

std::string readable_kernel(const std::string& mangled) {
  int code = 0;
  char* demangled = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &code);
  std::string text = code == 0 ? demangled : mangled;
  std::free(demangled);
  for (const char* part :
       {"moesaic::cuda::", "(anonymous namespace)::", "sm90::", "sm120::", "(int)", "(bool)"})
    replace_all(text, part, "");
  replace_all(text, "(Element)0", "E2M1"), replace_all(text, "(Element)1", "E4M3");
  if (text.starts_with("void ")) text.erase(0, 5);
  return text.substr(0, text.find('('));
}

LaunchLog::Scope::Scope(LaunchLog& log, const char* op) {
  log.op_ = op;
  current = &log;
}
LaunchLog::Scope::~Scope() { current = nullptr; }

void note_launch(const void* kernel, dim3 grid, dim3 block, size_t shared) {
  if (current != nullptr) current->add(kernel, grid, block, shared);
}

// In every step that is not a graph's: cheap unless the launch is new.
void LaunchLog::add(const void* kernel, dim3 grid, dim3 block, size_t shared) {
  const auto same = [&](const Use& u) { return u.op == op_ && u.kernel == kernel; };
  if (std::any_of(uses_.begin(), uses_.end(), same)) return;
  uses_.push_back({op_, kernel, grid, block});
  if (!debug_enabled() || !logged_.emplace(kernel, op_).second) return;
  cudaFuncAttributes attributes{};
  cudaFuncGetAttributes(&attributes, kernel);
  debug(fmt::format("{}: {}, {} KB of shared memory, {} registers, code for sm_{}", op_,
                    text_of(kernel, grid, block), (shared + attributes.sharedSizeBytes) / 1024,
                    attributes.numRegs, attributes.binaryVersion));
}

std::vector<std::string> LaunchLog::kernels(const char* op) const {
  std::vector<std::string> list;
  for (const Use& u : uses_) {
    if (u.op == op) list.push_back(text_of(u.kernel, u.grid, u.block));
  }
  return list;
}

}  // namespace moesaic::cuda
