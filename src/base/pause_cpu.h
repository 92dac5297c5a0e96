// A thread calls pause_cpu() between two looks at a word that another one will write.
#pragma once

namespace moesaic {

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace moesaic
