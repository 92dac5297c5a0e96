// gpt-oss's graph up to the last layer, for all backends. A step begins before it and ends after it
// (Backend).
#pragma once

#include "backend/backend.h"

namespace moesaic {

inline void run_layers(Backend& backend, int layers) {
  backend.embed();
  for (int layer = 0; layer < layers; ++layer) {
    backend.qkv(layer);
    backend.attend(layer);
    backend.project(layer);
    backend.moe(layer);
  }
}

}  // namespace moesaic
