// AMX tiles by instructions, with the interface of EmulatedTiles (tile_model.h). Inline assembly and not the
// intrinsics: GCC's take only literal tile numbers, and GCC 12's loads do not say that they read memory.
#pragma once

#include "backend/cpu/tile_model.h"

namespace moesaic::cpu {
namespace {

// Configured for one task and released after it: a thread that keeps a configuration pays 8 KB more at every
// context switch and keeps its core from deep sleep, and a caller's thread may use tiles of its own in
// between. LDTILECFG takes some 200 cycles.
class HardwareTiles {
 public:
  explicit HardwareTiles(const TileConfig& config) { asm volatile("ldtilecfg %0" ::"m"(config)); }
  ~HardwareTiles() { asm volatile("tilerelease" ::: "memory"); }
  HardwareTiles(const HardwareTiles&) = delete;
  HardwareTiles& operator=(const HardwareTiles&) = delete;

  template <int kTile>
  void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  template <int kTile>
  void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  void store(void* to, int64_t stride) const {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kC, int kA, int kB>
  void dot_int8() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
  }
  template <int kC, int kA, int kB>
  void dot_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
  }
};

}  // namespace
}  // namespace moesaic::cpu
