// The environment variables that all of Hugging Face's programs read choose the hub, the token and the cache.
#pragma once

#include <string>

#include "moesaic/status.h"

namespace moesaic::hub {

struct HubOptions {
  std::string endpoint = "https://huggingface.co";  // without a slash at its end
  std::string token;                                // empty: nobody's
  std::string cache;                                // the folder with models--owner--name
  bool offline = false;
  int patience = 30;    // seconds without an answer, or with almost none, before a connection is made anew
  int connections = 8;  // at a time
};

// Reads HF_ENDPOINT; HF_TOKEN, HF_TOKEN_PATH and the file that `hf auth login` writes, unless
// HF_HUB_DISABLE_IMPLICIT_TOKEN; HF_HUB_CACHE and the others of model_places(); HF_HUB_OFFLINE;
// HF_HUB_DOWNLOAD_TIMEOUT.
Result<HubOptions> hub_options();

// http or https, host and port of a URL, in small letters: what must be the same for a token to be sent.
// Empty: it is neither.
std::string origin_of(const std::string& url);
// True if a user's name or password stands before the host.
bool has_user(const std::string& url);

}  // namespace moesaic::hub
