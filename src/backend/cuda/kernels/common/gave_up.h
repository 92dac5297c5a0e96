// Kernels that give up waiting for each other leave one of these in the fault word (patience.cuh).
#pragma once

namespace moesaic::cuda {

inline constexpr int kGaveUp = -1;
inline constexpr int kRankAway = -2;  // what another rank makes did not come
// What people read of it stands behind the name of what ran.
inline constexpr const char* kGaveUpMessage =
    "a kernel waited 9 s for a part of itself that the GPU did not run, and gave up; does another program or "
    "stream keep the GPU busy?";
inline constexpr const char* kRankAwayMessage =
    "a GPU waited for another one's part of a step, which did not come: the device is lost; load the model "
    "again";

}  // namespace moesaic::cuda
