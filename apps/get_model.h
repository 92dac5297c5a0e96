// Models from Hugging Face's hub, with progress at a terminal.
#pragma once

#include <string>
#include <string_view>

#include "moesaic/status.h"

namespace moesaic::app {

// A name that begins with this is looked for here first and then got from the hub: -hf owner/name.
inline constexpr std::string_view kHubScheme = "hf:";

struct GetOptions {
  bool usual = false;  // llama.cpp's usual quantisation, where there are several
  bool ask = false;    // before anything of size is fetched, at the terminal
  int connections = 8;
};

// owner/name[@REVISION][:QUANTISATION] or owner/name[@REVISION]/file.gguf into the Hugging Face cache; the
// path of the model there. Ctrl-C ends it as StatusCode::kCancelled and leaves what has come.
Result<std::string> get_model(const std::string& name, const GetOptions& options);

// The name of a model in the cache by which it can be opened; it is got if it is not there.
Result<std::string> get_if_absent(const std::string& name);

// At a terminal: if a name is owner/name of a model that is not here, asks whether to get it, and does.
Status offer_to_get(const std::string& name);

}  // namespace moesaic::app
