// The pages that llama.cpp's clients read beside OpenAI's API.
#pragma once

#include <boost/asio/awaitable.hpp>

#include "server/app.h"
#include "server/http.h"

namespace moesaic::server {

asio::awaitable<void> llama_props(HttpExchange& exchange, App& app);  // GET /props
asio::awaitable<void> llama_slots(HttpExchange& exchange, App& app);  // GET /slots

}  // namespace moesaic::server
