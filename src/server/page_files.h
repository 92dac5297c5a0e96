// The files of the chat page, src/server/page, as part of the program. Made by page/embed.cmake.
#pragma once

#include <span>
#include <string_view>

namespace moesaic::server {

struct PageFile {
  std::string_view path;  // below /page/VERSION/; empty: index.html
  std::string_view type;  // Content-Type
  bool compressed;        // by gzip
  std::string_view bytes;
};

std::span<const PageFile> page_files();
// A hash of all of them.
std::string_view page_version();

}  // namespace moesaic::server
