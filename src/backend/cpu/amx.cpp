#include "backend/cpu/amx.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace moesaic::cpu {
namespace {

// Leaf 7: AMX-BF16, AMX-TILE and AMX-INT8. Leaf 1: the system uses XSAVE, so that XGETBV may be asked.
bool cpu_has_tiles() {
  constexpr unsigned kOsxsave = 1u << 27, kTileBits = 1u << 22 | 1u << 24 | 1u << 25;
  unsigned a, b, c, d;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kOsxsave) == 0) return false;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kTileBits) == kTileBits;
}

// State components 17 (tile configuration) and 18 (tiles).
bool system_saves_tiles() {
  constexpr unsigned kTileState = 3u << 17;
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & kTileState) == kTileState;
}

// Linux gives a process the larger state that tiles need only when it asks
// (Documentation/arch/x86/xstate.rst).
bool ask_permission() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool amx_permitted() {
  static const bool permitted = cpu_has_tiles() && system_saves_tiles() && ask_permission();
  return permitted;
}

}  // namespace moesaic::cpu
