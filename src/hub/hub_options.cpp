#include "hub/hub_options.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/file_cache.h"
#include "base/nearest.h"
#include "base/strings.h"
#include "checkpoint/model_places.h"

namespace moesaic::hub {
namespace {

bool is_on(const std::string& value) {
  const std::string small = lower_case(value);
  return small == "1" || small == "on" || small == "yes" || small == "true";
}

// A variable or a file may end with a line's end.
std::string bare(std::string_view text) { return std::string(trimmed(text, " \t\r\n\v\f")); }

std::string token_path(const std::string& cache) {
  if (std::string path = environment_path("HF_TOKEN_PATH"); !path.empty()) return path;
  if (const std::string home = environment_path("HF_HOME"); !home.empty()) return home + "/token";
  if (const std::string xdg = environment_path("XDG_CACHE_HOME"); !xdg.empty())
    return xdg + "/huggingface/token";
  const std::string home = environment("HOME");
  return home.empty() ? cache + "/../token" : home + "/.cache/huggingface/token";
}

std::string token_of(const std::string& cache) {
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    if (std::string token = bare(environment(name)); !token.empty()) return token;
  }
  if (is_on(environment("HF_HUB_DISABLE_IMPLICIT_TOKEN"))) return {};
  constexpr size_t kMostToken = 4096;
  const Result<std::string> file = read_whole(token_path(cache), kMostToken);
  return file.ok() ? bare(file.value()) : "";
}

}  // namespace

Result<HubOptions> hub_options() {
  HubOptions o;
  if (const std::string endpoint = bare(environment("HF_ENDPOINT")); !endpoint.empty()) o.endpoint = endpoint;
  while (o.endpoint.ends_with('/')) o.endpoint.pop_back();
  if (origin_of(o.endpoint).empty())
    return invalid("HF_ENDPOINT: '{}' is not a URL of http or https", o.endpoint);
  // A password there would be shown in every message.
  if (has_user(o.endpoint)) return invalid("HF_ENDPOINT: a user's name in it is not supported; use HF_TOKEN");
  if (o.endpoint.find_first_of("?# ") != std::string::npos)
    return invalid("HF_ENDPOINT: '{}' is not the address of a hub, which has no '?', '#' or space",
                   o.endpoint);
  o.cache = model_places().hub;
  if (o.cache.empty())
    return invalid("there is no folder for the Hugging Face cache: set HF_HUB_CACHE or HOME");
  o.token = token_of(o.cache);
  if (!std::ranges::all_of(o.token, [](unsigned char c) { return c > ' ' && c < 0x7F; }))
    return invalid("the token of Hugging Face (HF_TOKEN or its file) has characters that no token has");
  const std::string offline = environment("HF_HUB_OFFLINE");  // counts where it says anything
  o.offline = is_on(offline.empty() ? environment("TRANSFORMERS_OFFLINE") : offline);
  constexpr int kMostPatience = 3600;
  const std::string patience = environment("HF_HUB_DOWNLOAD_TIMEOUT");
  int seconds = 0;
  if (std::from_chars(patience.data(), patience.data() + patience.size(), seconds).ec == std::errc() &&
      seconds > 0)
    o.patience = std::min(seconds, kMostPatience);
  return o;
}

std::string origin_of(const std::string& url) {
  const std::string small = lower_case(url);
  const size_t start = small.starts_with("https://") ? 8 : small.starts_with("http://") ? 7 : 0;
  if (start == 0) return {};
  const size_t end = std::min(small.size(), small.find_first_of("/?#", start));
  return end == start ? "" : small.substr(0, end);
}

bool has_user(const std::string& url) { return origin_of(url).find('@') != std::string::npos; }

}  // namespace moesaic::hub
