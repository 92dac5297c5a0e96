// Floats as the kernels need them, whatever the process has set.
#pragma once

#include <cstdint>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace moesaic {

// While it lives, this thread computes with denormal numbers: codes of four and eight bits become floats by
// way of them. torch.set_flush_denormal(True) and libraries built with -ffast-math make zeros of them, for
// threads begun later, too.
class DefaultFloats {
 public:
  DefaultFloats() : before_(get()) {
    if ((before_ & kFlush) != 0) set(before_ & ~kFlush);
  }
  DefaultFloats(const DefaultFloats&) = delete;
  DefaultFloats& operator=(const DefaultFloats&) = delete;
  ~DefaultFloats() {
    if ((before_ & kFlush) != 0) set(before_);
  }

 private:
#if defined(__SSE2__)
  using Register = uint32_t;
  static constexpr Register kFlush = 0x8040;  // flush to zero, denormals are zeros
  static Register get() { return _mm_getcsr(); }
  static void set(Register value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
  using Register = uint64_t;
  static constexpr Register kFlush = 1 << 24;
  static Register get() {
    Register value = 0;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void set(Register value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#else
  using Register = uint32_t;
  static constexpr Register kFlush = 0;
  static Register get() { return 0; }
  static void set(Register) {}
#endif

  Register before_;
};

}  // namespace moesaic
