// The chat page at the server's root. The page itself, index.html, names its other files by addresses that
// have a hash of all content.
#pragma once

#include <boost/asio/awaitable.hpp>

#include "server/app.h"
#include "server/http.h"

namespace moesaic::server {

// GET /
asio::awaitable<void> page(HttpExchange& exchange, App& app);
// GET /page/VERSION/name; 404 for another version's, as an old tab may ask for.
asio::awaitable<void> page_file(HttpExchange& exchange, App& app);

}  // namespace moesaic::server
