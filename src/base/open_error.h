// The error of an open() that failed, by errno: kNotFound where the file is not there, else kIo.
#pragma once

#include <cerrno>
#include <cstring>
#include <string>

#include "base/error.h"

namespace moesaic {

inline Status open_error(const std::string& path) {
  const int why = errno;
  const bool absent = why == ENOENT || why == ENOTDIR;
  return error(absent ? StatusCode::kNotFound : StatusCode::kIo, "{}: {}", path, std::strerror(why));
}

}  // namespace moesaic
