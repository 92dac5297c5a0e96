// plan --tp: what each rank has of a model, what a step exchanges, and a projection for several H200.
#pragma once

#include "checkpoint/checkpoint.h"

namespace moesaic::app {

// Weights as the file has them. h200: adds the projected step of one token.
Status print_ranks(const Checkpoint& checkpoint, int ranks, bool h200);

}  // namespace moesaic::app
