// The chat page at the server's root: the files of page/, part of the program. The page itself, index.html,
// names the others by addresses that have a hash of all content, /page/VERSION/name.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <span>
#include <string_view>

#include "server/app.h"
#include "server/http.h"

namespace moesaic::server {

struct PageFile {
  std::string_view path;  // below /page/VERSION/; empty: index.html
  std::string_view type;  // Content-Type
  bool compressed;        // by gzip
  std::string_view bytes;
};

// Made by page/embed.cmake.
std::span<const PageFile> page_files();
std::string_view page_version();

// GET /
asio::awaitable<void> page(HttpExchange& exchange, App& app);
// GET /page/VERSION/name; 404 for another version's, as an old tab may ask for.
asio::awaitable<void> page_file(HttpExchange& exchange, App& app);

}  // namespace moesaic::server
