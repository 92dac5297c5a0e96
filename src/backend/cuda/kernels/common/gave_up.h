// Kernels that give up waiting for each other leave this in the fault word (kernels/sm90/patience.cuh).
#pragma once

namespace moesaic::cuda {

inline constexpr int kGaveUp = -1;
// What people read of it stands behind the name of what ran.
inline constexpr const char* kGaveUpMessage =
    "a kernel waited 9 s for a part of itself that the GPU did not run, and gave up; does another program or "
    "stream keep the GPU busy?";

}  // namespace moesaic::cuda
