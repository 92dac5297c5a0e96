#include <algorithm>

#include "backend/cpu/find_kernels.h"
#include "base/error.h"

#if defined(__x86_64__)
#include <cpuid.h>

#include "backend/cpu/amx.h"
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace moesaic::cpu {

extern const Kernels kKernels_scalar;

namespace {

struct Candidate {
  const Kernels* kernels;
  bool runs;
};

}  // namespace

#if defined(__x86_64__)

extern const Kernels kKernels_avx512, kKernels_avx512vnni, kKernels_avx512bw, kKernels_avxvnni, kKernels_avx2;

namespace {

// F16C and AVX-VNNI, which clang 14 does not know by name. What the operating system saves is asked with
// AVX2.
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & (1u << 29)) != 0;
}
bool has_avxvnni() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && eax >= 1 &&
         __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & (1u << 4)) != 0;
}

// kKernels_avx512 with products by tiles.
Kernels with_tiles(const char* name, void (*gemm)(const PairTask& task), int64_t (*multiply)(int64_t)) {
  Kernels kernels = kKernels_avx512;
  kernels.name = name;
  kernels.gemm = gemm;
  kernels.multiply = multiply;
  kernels.expand_tokens = kAmxExpandTokens;
  kernels.expands_int8 = true;
  kernels.mxfp4_act = Act::kBlockFloat;
  kernels.to_block_float = amx_to_block_float;
  return kernels;
}

// Each asks for everything that its file is compiled with (CMakeLists.txt): hypervisors hide features one by
// one.
std::vector<Candidate> candidates() {
  static const Kernels amx = with_tiles("amx", gemm_amx, multiply_amx);
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  const bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
  const bool bf16 = vnni && __builtin_cpu_supports("avx512bf16");
  const bool tiles = bf16 && __builtin_cpu_supports("avx512vbmi") && amx_permitted();
  return {{&amx, tiles},
          {&kKernels_avx512, bf16},
          {&kKernels_avx512vnni, vnni},
          {&kKernels_avx512bw, avx512},
          {&kKernels_avxvnni, avx2 && has_avxvnni()},
          {&kKernels_avx2, avx2},
          {&kKernels_scalar, true}};
}

}  // namespace

#elif defined(__aarch64__)

extern const Kernels kKernels_bf16, kKernels_i8mm, kKernels_dotprod;

namespace {

std::vector<Candidate> candidates() {
  const bool dotprod = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  const bool i8mm = dotprod && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
  return {{&kKernels_bf16, i8mm && (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0},
          {&kKernels_i8mm, i8mm},
          {&kKernels_dotprod, dotprod},
          {&kKernels_scalar, true}};
}

}  // namespace

#else

namespace {

std::vector<Candidate> candidates() { return {{&kKernels_scalar, true}}; }

}  // namespace

#endif

std::vector<const Kernels*> available_kernels() {
  std::vector<const Kernels*> found;
  for (const Candidate& candidate : candidates()) {
    if (candidate.runs) found.push_back(candidate.kernels);
  }
  return found;
}

std::vector<const Kernels*> emulated_kernels() {
#if defined(__x86_64__)
  static const Kernels amx = with_tiles("amx_emulated", gemm_amx_emulated, multiply_amx_emulated);
  const std::vector<const Kernels*> run = available_kernels();
  const bool avx512 = std::find(run.begin(), run.end(), &kKernels_avx512) != run.end();
  if (avx512 && __builtin_cpu_supports("avx512vbmi")) return {&amx};
#endif
  return {};
}

Result<const Kernels*> find_kernels(const std::string& isa) {
  std::string known;
  std::vector<const Kernels*> all = available_kernels();
  for (const Kernels* emulated : emulated_kernels()) all.push_back(emulated);
  for (const Kernels* kernels : all) {
    if (isa == "auto" || isa == kernels->name) return kernels;
    known += known.empty() ? kernels->name : fmt::format(", {}", kernels->name);
  }
  return invalid("cpu: this machine does not run instruction set '{}'; it has {}", isa, known);
}

}  // namespace moesaic::cpu
