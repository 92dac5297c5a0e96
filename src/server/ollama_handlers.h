// Ollama's endpoints.
#pragma once

#include <boost/asio/awaitable.hpp>

#include "server/app.h"
#include "server/http.h"

namespace moesaic::server {

asio::awaitable<void> ollama_version(HttpExchange& exchange, App& app);
asio::awaitable<void> ollama_tags(HttpExchange& exchange, App& app);
asio::awaitable<void> ollama_ps(HttpExchange& exchange, App& app);
asio::awaitable<void> ollama_show(HttpExchange& exchange, App& app);
asio::awaitable<void> ollama_chat(HttpExchange& exchange, App& app);
asio::awaitable<void> ollama_generate(HttpExchange& exchange, App& app);

}  // namespace moesaic::server
