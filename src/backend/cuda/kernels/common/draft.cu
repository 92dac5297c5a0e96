#include "backend/cuda/kernels/common/draft.cuh"
#include "backend/cuda/runtime/device.h"

namespace moesaic::cuda {
namespace {

template <class Params>
Status launch_rows(void (*kernel)(Params), const Params& p, cudaStream_t stream) {
  return launch(kernel, dim3(p.rows), dim3(kDraftThreads), kDraftWarps * sizeof(float), stream, p);
}

}  // namespace

Status tap(const Tap& p, cudaStream_t stream) {
  constexpr int kColumns = 4 * kDraftThreads;
  return launch(tap_kernel, dim3(p.rows, (p.hidden + kColumns - 1) / kColumns), dim3(kDraftThreads), 0,
                stream, p);
}
Status fuse_taps(const FuseTaps& p, cudaStream_t stream) { return launch_rows(fuse_taps_kernel, p, stream); }
Status join_inputs(const JoinInputs& p, cudaStream_t stream) {
  return launch_rows(join_inputs_kernel, p, stream);
}
Status place_rows(const PlaceRows& p, cudaStream_t stream) {
  return launch_rows(place_rows_kernel, p, stream);
}
Status next_round(const NextRound& p, cudaStream_t stream) {
  return launch_rows(next_round_kernel, p, stream);
}
// Kernels behind these two read what they write before they wait for their predecessors.
Status hold_rows(const HoldRows& p, cudaStream_t stream) {
  return launch_alone(hold_rows_kernel, dim3(p.count), dim3(kMoveThreads), 0, stream, p);
}
Status move_on(const MoveOn& p, cudaStream_t stream) {
  return launch_alone(move_on_kernel, dim3(p.count), dim3(kMoveThreads), 0, stream, p);
}
Status keep_drafts(const KeepDrafts& p, cudaStream_t stream) {
  return launch(keep_drafts_kernel, dim3(p.count), dim3(kMoveThreads), 0, stream, p);
}

}  // namespace moesaic::cuda
