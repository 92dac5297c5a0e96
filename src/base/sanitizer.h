// For tests that measure memory, or take long.
#pragma once

namespace moesaic {

// Tells that this is built with a sanitizer that keeps memory of its own. GCC says so by macros, clang by
// features.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kMemoryIsSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool kMemoryIsSanitized = true;
#else
inline constexpr bool kMemoryIsSanitized = false;
#endif
#else
inline constexpr bool kMemoryIsSanitized = false;
#endif

}  // namespace moesaic
