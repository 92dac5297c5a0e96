#include "backend/cpu/kernels.h"

#if defined(__x86_64__)
#include "backend/cpu/amx.h"
#endif

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace moesaic::cpu {

extern const Kernels kKernels_scalar;
#if defined(__x86_64__)
extern const Kernels kKernels_avx512, kKernels_avx2;
#elif defined(__aarch64__)
extern const Kernels kKernels_i8mm, kKernels_dotprod;
#endif

#if defined(__x86_64__)
namespace {

bool has_avx512() {
  return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}

// Tiles need nothing else of their own: these tables are kKernels_avx512 with another product.
Kernels with_tiles(const char* name, void (*gemm)(const PairTask& task)) {
  Kernels kernels = kKernels_avx512;
  kernels.name = name;
  kernels.gemm = gemm;
  return kernels;
}

}  // namespace
#endif

std::vector<const Kernels*> available_kernels() {
  std::vector<const Kernels*> found;
#if defined(__x86_64__)
  if (has_avx512()) {
    static const Kernels amx = with_tiles("amx", gemm_amx);
    if (amx_permitted()) found.push_back(&amx);
    found.push_back(&kKernels_avx512);
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found.push_back(&kKernels_avx2);
#elif defined(__aarch64__)
  const bool dotprod = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  if (dotprod && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0) found.push_back(&kKernels_i8mm);
  if (dotprod) found.push_back(&kKernels_dotprod);
#endif
  found.push_back(&kKernels_scalar);
  return found;
}

std::vector<const Kernels*> emulated_kernels() {
#if defined(__x86_64__)
  static const Kernels amx = with_tiles("amx_emulated", gemm_amx_emulated);
  if (has_avx512()) return {&amx};
#endif
  return {};
}

}  // namespace moesaic::cpu
