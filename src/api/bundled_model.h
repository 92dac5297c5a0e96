// Finds the model "tiny", which comes with the program and the library.
#pragma once

#include <string>

#include "moesaic/status.h"

namespace moesaic {

// Its folder: in $MOESAIC_MODELS, or near the library or the program that holds this code: in
// share/moesaic/models or models of a folder above it; or where packages put it, below /usr/local and /usr.
Result<std::string> bundled_model();

// The folder of the EAGLE3 head that comes with it.
Result<std::string> bundled_head();

// The path for open_checkpoint: the bundled model's for "tiny", any other as it is.
Result<std::string> model_path(const std::string& model);

}  // namespace moesaic
