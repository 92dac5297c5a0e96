// Which handler answers a request.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <string>
#include <string_view>

#include "server/app.h"
#include "server/http.h"

namespace moesaic::server {

// Checks the key, finds the handler and runs it; unknown paths and methods are answered here.
asio::awaitable<void> route(HttpExchange& exchange, App& app);

// Whether a request for this path may go on to have its body read; nothing, or the refusal.
openai::Refusal check_access(const HttpRequest& request, const App& app);

// The name of a model in a path of /v1/models/{id}, which may hold slashes, written out or as %2F.
std::string model_id(std::string_view path);

// What stands behind the last slash of a path of /v1/responses/{id}.
std::string response_id(std::string_view path);

// An error in the shape that clients of a path expect.
std::string error_body(std::string_view path, const openai::ApiError& error);

// What a known path takes, for the Allow field.
std::string methods_of(const std::string& path);

}  // namespace moesaic::server
