// The hub's JSON: whatever is accepted is a list of plain paths with possible sizes.
#include <cstdint>

#include "base/error.h"
#include "hub/choose_files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moesaic;
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  hub::Listing listing{.repository = "o/n"};
  const Status added = hub::add_files(json, listing);
  for (const hub::RemoteFile& file : listing.files) {
    MOESAIC_CHECK(file.size >= 0 && !file.path.empty() && file.path[0] != '/');
    MOESAIC_CHECK(("/" + file.path + "/").find("/../") == std::string::npos);
  }
  if (added.ok()) {
    for (const char* tag : {"", "Q8_0"}) {
      const auto choice = hub::choose_files(listing, {.repository = "o/n", .tag = tag}, true);
      MOESAIC_CHECK(!choice.ok() || !choice->files.empty());
    }
  }
  (void)hub::commit_of(json, "o/n").ok();
  return 0;
}
