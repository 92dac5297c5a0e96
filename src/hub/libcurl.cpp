#include "hub/libcurl.h"

#include <dlfcn.h>

#include "base/error.h"
#include "base/find_symbol.h"

namespace moesaic::hub {
namespace {

bool find_all(void* library, Curl& c) {
  return find_symbol(library, "curl_global_init", c.global_init) &&
         find_symbol(library, "curl_easy_init", c.easy_init) &&
         find_symbol(library, "curl_easy_cleanup", c.easy_cleanup) &&
         find_symbol(library, "curl_easy_reset", c.easy_reset) &&
         find_symbol(library, "curl_easy_setopt", c.easy_setopt) &&
         find_symbol(library, "curl_easy_getinfo", c.easy_getinfo) &&
         find_symbol(library, "curl_easy_strerror", c.easy_strerror) &&
         find_symbol(library, "curl_slist_append", c.slist_append) &&
         find_symbol(library, "curl_slist_free_all", c.slist_free_all) &&
         find_symbol(library, "curl_multi_init", c.multi_init) &&
         find_symbol(library, "curl_multi_cleanup", c.multi_cleanup) &&
         find_symbol(library, "curl_multi_add_handle", c.multi_add_handle) &&
         find_symbol(library, "curl_multi_remove_handle", c.multi_remove_handle) &&
         find_symbol(library, "curl_multi_perform", c.multi_perform) &&
         find_symbol(library, "curl_multi_poll", c.multi_poll) &&
         find_symbol(library, "curl_multi_info_read", c.multi_info_read);
}

// The library stays loaded.
Result<const Curl*> load() {
  static Curl curl;
  for (const char* name : {"libcurl.so.4", "libcurl-gnutls.so.4"}) {
    void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr || !find_all(library, curl)) continue;
    if (curl.global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK) return &curl;
  }
  return error(
      StatusCode::kUnsupported,
      "getting models needs libcurl 7.66 or later: install libcurl4 (Debian, Ubuntu) or libcurl (Fedora)");
}

}  // namespace

Result<const Curl*> libcurl() {
  static const Result<const Curl*> loaded = load();
  return loaded;
}

}  // namespace moesaic::hub
