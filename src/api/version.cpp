// The version, from CMake's project(); moesaic/version.h has to say the same.
#include <string_view>

#include "moesaic/device.h"
#include "moesaic/moesaic.h"

namespace moesaic {
namespace {

constexpr int number_of(std::string_view text) {
  int parts[3] = {}, at = 0;
  for (const char c : text) c == '.' ? ++at : parts[at] = parts[at] * 10 + (c - '0');
  return parts[0] * 10000 + parts[1] * 100 + parts[2];
}
static_assert(number_of(MOESAIC_PROJECT_VERSION) == MOESAIC_VERSION_NUMBER,
              "include/moesaic/version.h differs from the version in CMakeLists.txt");

}  // namespace

std::string_view version() { return MOESAIC_PROJECT_VERSION; }
int version_number() { return MOESAIC_VERSION_NUMBER; }

}  // namespace moesaic

const char* moesaic_version() { return MOESAIC_PROJECT_VERSION; }
int32_t moesaic_version_number() { return moesaic::version_number(); }
