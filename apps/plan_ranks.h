// plan --tp: what each rank has of a model, what a step exchanges, and decoding by several H200, projected.
#pragma once

#include "checkpoint/checkpoint.h"

namespace moesaic::app {

// Weights as the file has them. h200: adds projected decoding beside replicas.
Status print_ranks(const Checkpoint& checkpoint, int ranks, bool h200);

}  // namespace moesaic::app
