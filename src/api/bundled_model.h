// Where the model "tiny" is, which comes with the program and the library.
#pragma once

#include <string>

#include "moesaic/status.h"

namespace moesaic {

// Its folder: in $MOESAIC_MODELS, or near the library or the program that holds this code: in
// share/moesaic/models or models of a folder above it; or where packages put it, below /usr/local and /usr.
Result<std::string> bundled_model();

// The folder of the EAGLE3 head that comes with it.
Result<std::string> bundled_head();

// What open_checkpoint takes: the bundled model for "tiny", anything else as it is.
Result<std::string> model_path(const std::string& model);

}  // namespace moesaic
