// Finds the handler that answers a request.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <string>
#include <string_view>

#include "server/app.h"
#include "server/http.h"

namespace moesaic::server {

// Checks the key, finds the handler and runs it; unknown paths and methods are answered here.
asio::awaitable<void> route(HttpExchange& exchange, App& app);

// Decides whether the body of a request for this path is read: nothing, or the refusal.
openai::Refusal check_access(const HttpRequest& request, const App& app);

// The name of a model in a path of /v1/models/{id}, which may hold slashes, written out or as %2F.
std::string model_id(std::string_view path);

// The id in a path of /v1/responses/{id}.
std::string response_id(std::string_view path);

// An error in the shape that the request's client expects, by its path or by a field that only Anthropic's
// clients send.
std::string error_body(const HttpRequest& request, const openai::ApiError& error);

// The methods that a known path takes, for the Allow field.
std::string methods_of(const std::string& path);

}  // namespace moesaic::server
