// Kernels that give up waiting for each other leave one of these in the fault word (patience.cuh).
#pragma once

namespace moesaic::cuda {

inline constexpr int kGaveUp = -1;
inline constexpr int kRankAway = -2;    // another rank's part did not come
inline constexpr int kHostAway = -3;    // the host did not finish a layer's experts
inline constexpr int kHostFailed = -4;  // it could not compute them
// People read this message behind the name of what ran.
inline constexpr const char* kGaveUpMessage =
    "a kernel waited 9 s for a part of itself that the GPU did not run, and gave up; does another program or "
    "stream keep the GPU busy?";
inline constexpr const char* kRankAwayMessage =
    "a GPU waited for another one's part of a step, which did not come: the device is lost; load the model "
    "again";
inline constexpr const char* kHostAwayMessage =
    "the CPU did not finish a layer's experts within 56 s: was the program stopped, or is memory swapped "
    "out?";

}  // namespace moesaic::cuda
