// The page at the server's root, page.html: one self-contained file, part of the program.
#pragma once

#include <string_view>

namespace moesaic::server {

extern const std::string_view kPage;

}  // namespace moesaic::server
